rule audit_judge:
    message:
        "Audit of judge {wildcards.judge} on {wildcards.method}, seed {wildcards.seed}" + PLAN.note("audit_judge")
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.audit_pattern.format(**wildcards)),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.audit_pattern.format(**wildcards)),
        method=lambda wildcards: kept(GRID.method_files(wildcards.method), GRID.audit_pattern.format(**wildcards)),
        judge=lambda wildcards: kept(GRID.judge_files(wildcards.judge), GRID.audit_pattern.format(**wildcards)),
        run=lambda wildcards: kept([GRID.run_pattern.format(**wildcards)], GRID.audit_pattern.format(**wildcards)),
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
        GRID.launch("audit_judge", "audit-{wildcards.judge}-{wildcards.method}-seed-{wildcards.seed}", judge="{wildcards.judge}")
        + "python -m stages.audit_judge --config {input.config:q} --judge {wildcards.judge}"
        ' --method {wildcards.method} --seed {wildcards.seed} --run "$(dirname -- {input.run:q})" > {log:q} 2>&1'
