rule reselect_run:
    message:
        "Other selections of {wildcards.method}, seed {wildcards.seed}" + PLAN.note("select")
    input:
        config=lambda wildcards: kept([GRID.experiment_file], GRID.reselect_pattern.format(**wildcards)),
        extended=lambda wildcards: kept(GRID.extended_files, GRID.reselect_pattern.format(**wildcards)),
        selectors=lambda wildcards: kept([GRID.selectors_file], GRID.reselect_pattern.format(**wildcards)),
        method=lambda wildcards: kept(GRID.method_files(wildcards.method), GRID.reselect_pattern.format(**wildcards)),
        tags=lambda wildcards: GRID.retags_of(wildcards.method, wildcards.seed),
        run=lambda wildcards: kept([GRID.run_pattern.format(**wildcards)], GRID.reselect_pattern.format(**wildcards)),
    output:
        GRID.reselect_pattern,
    params:
        selectors=" ".join(GRID.selectors),
        judges=" ".join(GRID.retagging_judges),
    log:
        f"{GRID.logs}/reselect-{{method}}-seed-{{seed}}.log",
    benchmark:
        f"{GRID.logs}/reselect-{{method}}-seed-{{seed}}.benchmark.tsv"
    resources:
        **PLAN.resources("select"),
    conda:
        "../environment.yml"
    shell:
        GRID.launch("select", "reselect-{wildcards.method}-seed-{wildcards.seed}")
        + "python -m stages.select --config {input.config:q} --selectors {params.selectors} --judges {params.judges}"
        ' --method {wildcards.method} --seed {wildcards.seed} --run "$(dirname -- {input.run:q})" > {log:q} 2>&1'
