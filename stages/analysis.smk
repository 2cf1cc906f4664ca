rule table:
    message:
        "Table {wildcards.name}"
    input:
        GRID.analysed_files,
    output:
        f"{GRID.analysis}/tables/{{name}}.csv",
    params:
        runs=lambda wildcards: GRID.runs,
    log:
        f"{GRID.analysis}/logs/{{name}}.log",
    benchmark:
        f"{GRID.analysis}/logs/{{name}}.benchmark.tsv"
    conda:
        "../environment.yml"
    shell:
        'python -m analysis.tables.{wildcards.name} --runs {params.runs:q} --out "$(dirname -- {output:q})" > {log:q} 2>&1'


rule figure:
    message:
        "Figure {wildcards.name}"
    input:
        GRID.analysed_files,
    output:
        f"{GRID.analysis}/figures/{{name}}.png",
    params:
        runs=lambda wildcards: GRID.runs,
    log:
        f"{GRID.analysis}/logs/{{name}}.log",
    benchmark:
        f"{GRID.analysis}/logs/{{name}}.benchmark.tsv"
    conda:
        "../environment.yml"
    shell:
        'python -m analysis.figures.{wildcards.name} --runs {params.runs:q} --out "$(dirname -- {output:q})" > {log:q} 2>&1'


rule report_file:
    message:
        "Report"
    input:
        runs=GRID.analysed_files,
        tables=GRID.table_files,
        figures=GRID.figure_files,
    output:
        GRID.report,
    params:
        runs=lambda wildcards: GRID.runs,
        tables=lambda wildcards: GRID.tables,
        figures=lambda wildcards: GRID.figures,
    log:
        f"{GRID.analysis}/logs/report.log",
    benchmark:
        f"{GRID.analysis}/logs/report.benchmark.tsv"
    conda:
        "../environment.yml"
    shell:
        "python -m analysis.report --runs {params.runs:q} --out {output:q}"
        " --tables {params.tables:q} --figures {params.figures:q}"
        ' --made-from "$(dirname -- {output:q})/tables" "$(dirname -- {output:q})/figures" > {log:q} 2>&1'
