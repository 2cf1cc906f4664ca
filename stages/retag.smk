rule retag_run:
    message:
        "Tags by {wildcards.judge} of {wildcards.method}, seed {wildcards.seed}" f"{PLAN.note('retag')}"
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.retag_pattern.format(**wildcards)),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.retag_pattern.format(**wildcards)),
        method=lambda wildcards: kept(GRID.method_files(wildcards.method), GRID.retag_pattern.format(**wildcards)),
        judge=lambda wildcards: kept(GRID.judge_files(wildcards.judge), GRID.retag_pattern.format(**wildcards)),
        run=lambda wildcards: kept([GRID.run_pattern.format(**wildcards)], GRID.retag_pattern.format(**wildcards)),
    output:
        GRID.retag_pattern,
    log:
        f"{GRID.logs}/retag-{{judge}}-{{method}}-seed-{{seed}}.log",
    benchmark:
        f"{GRID.logs}/retag-{{judge}}-{{method}}-seed-{{seed}}.benchmark.tsv"
    resources:
        **PLAN.resources("retag"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch(
            "retag", "retag-{wildcards.judge}-{wildcards.method}-seed-{wildcards.seed}", judge="{wildcards.judge}"
        )
        + "python -m stages.retag --config {input.config:q} --judge {wildcards.judge}"
        ' --method {wildcards.method} --seed {wildcards.seed} --run "$(dirname -- {input.run:q})" > {log:q} 2>&1'
