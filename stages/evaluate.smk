rule evaluate_warm_start:
    message:
        "Validation of the policy that every run starts from" + PLAN.note("evaluate")
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.warm_start),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.warm_start),
        tasks=lambda wildcards: kept([GRID.tasks], GRID.warm_start),
    output:
        GRID.warm_start,
    log:
        f"{GRID.logs}/evaluate-warm-start.log",
    benchmark:
        f"{GRID.logs}/evaluate-warm-start.benchmark.tsv"
    resources:
        **PLAN.resources("evaluate"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("evaluate", "warm_start")
        + "python -m stages.evaluate --config {input.config:q} --tasks {input.tasks:q}"
        ' --out "$(dirname -- {output:q})" > {log:q} 2>&1'
