"""Schedules by rules, without a template: for any tensor expression (the AutoScheduler).

*Rules* go through an expression and make a schedule step by step; where several steps are possible,
the step is *open*. Which are open, and in what order, is a sketch; how they are decided is its
annotation. An evolutionary search decides them: at random first, then by changing and crossing the
logs of good schedules.
"""
