grep -oE "^\s+/\*[0-9a-f]+\*/\s+(@!?U?P[0-9T]+ )?[A-Z0-9.]+" $1 | awk '{print $NF}' | sort | uniq -c | sort -rn | head -${2:-25}
