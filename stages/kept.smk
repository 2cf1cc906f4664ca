def kept(files, product):
    """A stage's inputs. Where only the analysis is asked for, they repeat nothing that is there, whatever their age."""
    asked = workflow.dag_settings.targets if workflow.dag_settings else ()
    return [ancient(file) for file in files] if GRID.keeps(product, asked) else files
