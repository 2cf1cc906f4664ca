rule prepare:
    message:
        "Task panels of {params.experiment}"
    input:
        GRID.experiment_file,
    output:
        GRID.tasks,
    params:
        experiment=GRID.name,
    log:
        f"{GRID.logs}/prepare.log",
    benchmark:
        f"{GRID.logs}/prepare.benchmark.tsv"
    conda:
        "../environment.yml"
    shell:
        GRID.launch("prepare", "prepare")
        + "python -m stages.prepare --config {input:q} --out {output:q} > {log:q} 2>&1"
