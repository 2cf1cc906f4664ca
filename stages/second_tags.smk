rule second_tags:
    message:
        "Second tags of {wildcards.method}, seed {wildcards.seed}" + PLAN.note("retag")
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.second_tags_pattern.format(**wildcards)),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.second_tags_pattern.format(**wildcards)),
        method=lambda wildcards: kept(GRID.method_files(wildcards.method), GRID.second_tags_pattern.format(**wildcards)),
        run=lambda wildcards: kept([GRID.run_pattern.format(**wildcards)], GRID.second_tags_pattern.format(**wildcards)),
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
