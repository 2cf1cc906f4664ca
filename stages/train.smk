rule train:
    message:
        "Train {wildcards.method}, seed {wildcards.seed}" + PLAN.note("train")
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.run_pattern.format(**wildcards)),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.run_pattern.format(**wildcards)),
        method=lambda wildcards: kept(GRID.method_files(wildcards.method), GRID.run_pattern.format(**wildcards)),
        tasks=lambda wildcards: kept([GRID.tasks], GRID.run_pattern.format(**wildcards)),
        warm_start=lambda wildcards: kept([GRID.warm_start], GRID.run_pattern.format(**wildcards)),
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
