rule publish:
    message:
        "Dataset of the runs, ready for upload"
    input:
        GRID.analysed_files,
    output:
        GRID.dataset_sums,
    params:
        runs=lambda wildcards: GRID.runs,
        name=GRID.name,
        texts="--texts" if config.get("texts") else "",
    log:
        f"{GRID.analysis}/logs/publish.log",
    benchmark:
        f"{GRID.analysis}/logs/publish.benchmark.tsv"
    conda:
        "../environment.yml"
    shell:
        'python -m stages.publish --runs {params.runs:q} --name {params.name} --out "$(dirname -- {output:q})" {params.texts}'
        " > {log:q} 2>&1"


rule verify:
    message:
        "Check of {params.dataset}"
    input:
        [] if GRID.verified else GRID.dataset_sums,
    params:
        dataset=lambda wildcards: GRID.verified or GRID.dataset,
    log:
        f"{GRID.analysis}/logs/verify.log",
    conda:
        "../environment.yml"
    shell:
        "if python -m stages.verify --dataset {params.dataset:q} > {log:q} 2>&1; then cat {log:q};"
        " else cat {log:q} >&2; exit 1; fi"
