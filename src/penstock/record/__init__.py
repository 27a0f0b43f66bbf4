"""Run directories, which record a control plane's decisions, and their replay."""
