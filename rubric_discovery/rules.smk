rule discovery_sample:
    message:
        DISCOVERY.message("1 of 7: rollouts and pairs", PLAN.note("discovery"))
    input:
        config=DISCOVERY.file,
        runs=DISCOVERY.finished_runs,
    output:
        DISCOVERY.path("sampled.parquet"),
        DISCOVERY.path("pairs.parquet"),
        record=DISCOVERY.path("sample.yaml"),
    params:
        options=DISCOVERY.options,
    log:
        DISCOVERY.path("logs/sample.log"),
    benchmark:
        DISCOVERY.path("logs/sample.benchmark.tsv")
    resources:
        **PLAN.resources("discovery"),
    conda:
        "../environment.yml"
    shell:
        DISCOVERY.command("sample")


rule discovery_propose:
    message:
        DISCOVERY.message("2 of 7: behaviours that tell successes from failures", PLAN.note("discovery"))
    input:
        rules.discovery_sample.output,
        config=DISCOVERY.file,
    output:
        DISCOVERY.path("observations.parquet"),
        record=DISCOVERY.path("propose.yaml"),
    params:
        options=DISCOVERY.options,
    log:
        DISCOVERY.path("logs/propose.log"),
    benchmark:
        DISCOVERY.path("logs/propose.benchmark.tsv")
    resources:
        **PLAN.resources("discovery"),
    conda:
        "../environment.yml"
    shell:
        DISCOVERY.command("propose")


rule discovery_normalise:
    message:
        DISCOVERY.message("3 of 7: candidates in the vocabulary's form", PLAN.note("discovery"))
    input:
        rules.discovery_propose.output,
        config=DISCOVERY.file,
    output:
        DISCOVERY.path("candidates.parquet"),
        record=DISCOVERY.path("normalise.yaml"),
    params:
        options=DISCOVERY.options,
    log:
        DISCOVERY.path("logs/normalise.log"),
    benchmark:
        DISCOVERY.path("logs/normalise.benchmark.tsv")
    resources:
        **PLAN.resources("discovery"),
    conda:
        "../environment.yml"
    shell:
        DISCOVERY.command("normalise")


rule discovery_merge:
    message:
        DISCOVERY.message("4 of 7: duplicates merged", PLAN.note("discovery"))
    input:
        rules.discovery_normalise.output,
        config=DISCOVERY.file,
    output:
        DISCOVERY.path("merged.parquet"),
        DISCOVERY.path("members.parquet"),
        record=DISCOVERY.path("merge.yaml"),
    params:
        options=DISCOVERY.options,
    log:
        DISCOVERY.path("logs/merge.log"),
    benchmark:
        DISCOVERY.path("logs/merge.benchmark.tsv")
    resources:
        **PLAN.resources("discovery"),
    conda:
        "../environment.yml"
    shell:
        DISCOVERY.command("merge")


rule discovery_screen:
    message:
        DISCOVERY.message("5 of 7: screens", PLAN.note("discovery"))
    input:
        rules.discovery_merge.output,
        rules.discovery_sample.output,
        config=DISCOVERY.file,
    output:
        DISCOVERY.path("screen.parquet"),
        DISCOVERY.path("screen.md"),
        record=DISCOVERY.path("screen.yaml"),
    params:
        options=DISCOVERY.options,
    log:
        DISCOVERY.path("logs/screen.log"),
    benchmark:
        DISCOVERY.path("logs/screen.benchmark.tsv")
    resources:
        **PLAN.resources("discovery"),
    conda:
        "../environment.yml"
    shell:
        DISCOVERY.command("screen")


rule discovery_group:
    message:
        DISCOVERY.message("6 of 7: skills", PLAN.note("discovery"))
    input:
        rules.discovery_screen.output,
        rules.discovery_merge.output,
        config=DISCOVERY.file,
    output:
        DISCOVERY.path("skills.yaml"),
        record=DISCOVERY.path("group.yaml"),
    params:
        options=DISCOVERY.options,
    log:
        DISCOVERY.path("logs/group.log"),
    benchmark:
        DISCOVERY.path("logs/group.benchmark.tsv")
    resources:
        **PLAN.resources("discovery"),
    conda:
        "../environment.yml"
    shell:
        DISCOVERY.command("group")


# The vocabulary itself is no output here: Snakemake removes outputs before it makes them, and people edit this one.
rule discovery_freeze:
    message:
        DISCOVERY.message("7 of 7: the vocabulary", PLAN.note("discovery"))
    input:
        rules.discovery_group.output,
        rules.discovery_screen.output,
        rules.discovery_merge.output,
        config=DISCOVERY.file,
    output:
        record=DISCOVERY.path("freeze.yaml"),
    params:
        options=DISCOVERY.options,
    log:
        DISCOVERY.path("logs/freeze.log"),
    benchmark:
        DISCOVERY.path("logs/freeze.benchmark.tsv")
    resources:
        **PLAN.resources("discovery"),
    conda:
        "../environment.yml"
    shell:
        DISCOVERY.command("freeze")
