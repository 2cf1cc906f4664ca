rule retag:
    message:
        "Second tags of {wildcards.method}, seed {wildcards.seed}" + PLAN.note("retag")
    input:
        config=GRID.experiment_file,
        extended=GRID.extended_files,
        method=lambda wildcards: GRID.method_files(wildcards.method),
        run=GRID.run_pattern,
    output:
        GRID.second_tags_pattern,
    log:
        f"{GRID.logs}/retag-{{method}}-seed-{{seed}}.log",
    benchmark:
        f"{GRID.logs}/retag-{{method}}-seed-{{seed}}.benchmark.tsv"
    resources:
        **PLAN.resources("retag"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("retag", "retag-{wildcards.method}-seed-{wildcards.seed}", method="{wildcards.method}")
        + "python -m stages.retag --config {input.config:q}"
        ' --method {wildcards.method} --seed {wildcards.seed} --run "$(dirname -- {input.run:q})" > {log:q} 2>&1'
