rule audit_judge:
    message:
        "Audit of judge {wildcards.judge} on {wildcards.method}, seed {wildcards.seed}" + PLAN.note("audit_judge")
    input:
        config=GRID.experiment_file,
        extended=GRID.extended_files,
        method=lambda wildcards: GRID.method_files(wildcards.method),
        judge=lambda wildcards: GRID.judge_files(wildcards.judge),
        run=GRID.run_pattern,
    output:
        GRID.audit_pattern,
    log:
        f"{GRID.logs}/audit-{{judge}}-{{method}}-seed-{{seed}}.log",
    benchmark:
        f"{GRID.logs}/audit-{{judge}}-{{method}}-seed-{{seed}}.benchmark.tsv"
    resources:
        **PLAN.resources("audit_judge"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("audit_judge", "audit-{wildcards.judge}-{wildcards.method}-seed-{wildcards.seed}")
        + "python -m stages.audit_judge --config {input.config:q} --judge {wildcards.judge}"
        ' --method {wildcards.method} --seed {wildcards.seed} --run "$(dirname -- {input.run:q})" > {log:q} 2>&1'
