rule train:
    message:
        "Train {wildcards.method}, seed {wildcards.seed}" + PLAN.note("train")
    input:
        config=GRID.experiment_file,
        extended=GRID.extended_files,
        method=lambda wildcards: GRID.method_files(wildcards.method),
        tasks=GRID.tasks,
        warm_start=GRID.warm_start,
    output:
        GRID.run_pattern,
    log:
        f"{GRID.logs}/train-{{method}}-seed-{{seed}}.log",
    benchmark:
        f"{GRID.logs}/train-{{method}}-seed-{{seed}}.benchmark.tsv"
    resources:
        **PLAN.resources("train"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("train", "train-{wildcards.method}-seed-{wildcards.seed}", resumes=True, method="{wildcards.method}")
        + "python -m stages.train --config {input.config:q} --tasks {input.tasks:q}"
        ' --warm-start "$(dirname -- {input.warm_start:q})" --method {wildcards.method} --seed {wildcards.seed}'
        ' --out "$(dirname -- {output:q})" > {log:q} 2>&1'
