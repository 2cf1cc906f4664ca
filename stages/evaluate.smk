rule evaluate_warm_start:
    message:
        "Validation of the policy that every run starts from" + PLAN.note("evaluate")
    input:
        config=GRID.experiment_file,
        extended=GRID.extended_files,
        tasks=GRID.tasks,
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
