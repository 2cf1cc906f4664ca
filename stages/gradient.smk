rule gradient:
    message:
        "Gradient signal of {wildcards.method}, seed {wildcards.seed}" + PLAN.note("gradient")
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.gradient_pattern.format(**wildcards)),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.gradient_pattern.format(**wildcards)),
        method=lambda wildcards: kept(GRID.method_files(wildcards.method), GRID.gradient_pattern.format(**wildcards)),
        tasks=lambda wildcards: kept([GRID.tasks], GRID.gradient_pattern.format(**wildcards)),
        run=lambda wildcards: kept([GRID.run_pattern.format(**wildcards)], GRID.gradient_pattern.format(**wildcards)),
    output:
        GRID.gradient_pattern,
    log:
        f"{GRID.logs}/gradient-{{method}}-seed-{{seed}}.log",
    benchmark:
        f"{GRID.logs}/gradient-{{method}}-seed-{{seed}}.benchmark.tsv"
    resources:
        **PLAN.resources("gradient", GRID.checkpoints),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("gradient", "gradient-{wildcards.method}-seed-{wildcards.seed}", parts=GRID.checkpoints)
        + "python -m stages.gradient --config {input.config:q} --tasks {input.tasks:q}"
        ' --method {wildcards.method} --seed {wildcards.seed} --run "$(dirname -- {input.run:q})" > {log:q} 2>&1'
