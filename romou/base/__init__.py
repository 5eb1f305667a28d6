"""What every other package stands on: errors, knob spaces, tasks as data, limits, the environment. Nothing here imports
another folder of Romou.
"""
