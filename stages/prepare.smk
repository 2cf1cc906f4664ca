rule prepare:
    message:
        "Task panels of {params.experiment}" + PLAN.note("prepare")
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.tasks),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.tasks),
    output:
        GRID.tasks,
    params:
        experiment=GRID.name,
    log:
        f"{GRID.logs}/prepare.log",
    benchmark:
        f"{GRID.logs}/prepare.benchmark.tsv"
    resources:
        **PLAN.resources("prepare"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("prepare", "prepare")
        + "python -m stages.prepare --config {input.config:q} --out {output:q} > {log:q} 2>&1"
