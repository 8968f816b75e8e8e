"""Pictures. Each function takes a result and a `Canvas`, draws, and returns nothing; `style.render` makes SVG and PNG of it.

No picture says anything by colour alone: series differ in marker and dashes too, worse steps are hatched.
"""
