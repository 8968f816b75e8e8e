
# Paths inside volumes: `myriad ls vol.img:/us<TAB>`. The rest is left to the function above.
_myriad() {
    if [[ $PREFIX == *:/* ]]; then
        local -a found
        found=(${(f)"$(${words[1]} completions --paths ${~${(Q)PREFIX}} 2>/dev/null)"})
        (( $#found )) && compadd -U -S '' -- $found
        return
    fi
    _myriad_words "$@"
}
