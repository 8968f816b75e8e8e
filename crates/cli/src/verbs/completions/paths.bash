
# Paths inside volumes: `myriad ls vol.img:/us<TAB>`. The rest is left to the function above.
_myriad_in_volumes() {
    # What is typed of the word up to the cursor; bash has split it at its colon. A backslash keeps a space in it.
    local line=${COMP_LINE:0:COMP_POINT} word rest part
    word=${line##* }
    rest=${line%"$word"}
    while [[ $rest == *'\ ' ]]; do
        rest=${rest%' '}
        part=${rest##* }
        word="$part $word"
        rest=${rest%"$part"}
    done
    word=${word//\\/}
    if [[ $word != *:/* ]]; then
        _myriad "$@"
        return
    fi
    word=${word/#\~\//$HOME/}
    local prefix= path quoted
    [[ $COMP_WORDBREAKS == *:* ]] && prefix=${word%"${word##*:}"}
    COMPREPLY=()
    while IFS= read -r path; do
        printf -v quoted %q "${path#"$prefix"}"
        COMPREPLY+=("$quoted")
    done < <("${COMP_WORDS[0]}" completions --paths "$word" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}

complete -F _myriad_in_volumes -o bashdefault -o default myriad
