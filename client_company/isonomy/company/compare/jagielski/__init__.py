"""The two algorithms of Jagielski et al. (ICML 2019), as they must be to be private."""
