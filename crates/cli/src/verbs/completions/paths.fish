
# Paths inside volumes: `myriad ls vol.img:/us<TAB>`.
complete -c myriad -n 'string match -q -- "*:/*" (commandline -ct)' -f -a '(myriad completions --paths (string unescape -- (commandline -ct)) 2>/dev/null)'
