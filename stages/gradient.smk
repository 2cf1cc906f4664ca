rule gradient:
    message:
        "Gradient signal of {wildcards.method}, seed {wildcards.seed}" + PLAN.note("gradient")
    input:
        config=GRID.experiment_file,
        extended=GRID.extended_files,
        method=lambda wildcards: GRID.method_files(wildcards.method),
        tasks=GRID.tasks,
        run=GRID.run_pattern,
    output:
        GRID.gradient_pattern,
    log:
        f"{GRID.logs}/gradient-{{method}}-seed-{{seed}}.log",
    benchmark:
        f"{GRID.logs}/gradient-{{method}}-seed-{{seed}}.benchmark.tsv"
    resources:
        **PLAN.resources("gradient"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("gradient", "gradient-{wildcards.method}-seed-{wildcards.seed}", parts=GRID.checkpoints)
        + "python -m stages.gradient --config {input.config:q} --tasks {input.tasks:q}"
        ' --method {wildcards.method} --seed {wildcards.seed} --run "$(dirname -- {input.run:q})" > {log:q} 2>&1'
