" Indentation of .plan files: four columns for each bracket that is open, as `plc fmt` does for braces.
if exists("b:did_indent")
  finish
endif
let b:did_indent = 1

setlocal indentexpr=PlanIndent(v:lnum)
setlocal indentkeys=0{,0},0),0],!^F,o,O
let b:undo_indent = "setlocal indentexpr< indentkeys<"

if exists("*PlanIndent")
  finish
endif

" Brackets of one kind that a line leaves open, without those in comments and texts.
function! s:Opens(line, open, close)
  let text = substitute(a:line, '"\%(\\.\|[^"\\]\)*"', '', 'g')
  let text = substitute(text, '#.*$', '', '')
  return count(text, a:open) - count(text, a:close)
endfunction

" Whether the statement goes on after the line: it ends with an operator or a comma, outside brackets.
function! s:GoesOn(line)
  let text = substitute(a:line, '"\%(\\.\|[^"\\]\)*"', '', 'g')
  let text = substitute(text, '\s*#.*$', '', '')
  return text =~ '\%([-+*/=,<>]\|\<and\|\<or\)\s*$'
endfunction

function! PlanIndent(lnum)
  let before = prevnonblank(a:lnum - 1)
  if before == 0
    return 0
  endif
  let line = getline(before)
  let indent = indent(before)
  if s:Opens(substitute(line, '^\s*}', '', ''), '{', '}') > 0
    let indent += shiftwidth()
  endif
  " Inside round or square brackets a line stands under what follows the bracket.
  let opened = s:Opens(line, '(', ')') + s:Opens(line, '[', ']')
  if opened > 0
    call cursor(a:lnum, 1)
    let [row, column] = searchpairpos('[([]', '', '[])]', 'bnW', 'synIDattr(synID(line("."), col("."), 1), "name") =~ "Comment\\|String"')
    if row == before
      let indent = column
    endif
  elseif opened < 0
    call cursor(before, 1)
    let row = searchpair('[([]', '', '[])]', 'bnW', 'synIDattr(synID(line("."), col("."), 1), "name") =~ "Comment\\|String"')
    let start = row > 0 ? row : before
    while start > 1 && s:Opens(join(getline(start, before), ' '), '(', ')') < 0
      let start -= 1
    endwhile
    let indent = indent(start) + (s:Opens(substitute(line, '^\s*}', '', ''), '{', '}') > 0 ? shiftwidth() : 0)
  endif
  if opened == 0
    let above = prevnonblank(before - 1)
    let inside = above > 0 && s:GoesOn(getline(above))
    if s:GoesOn(line) && !inside
      let indent += shiftwidth()
    elseif !s:GoesOn(line) && inside
      let indent -= shiftwidth()
    endif
  endif
  if getline(a:lnum) =~ '^\s*}'
    let indent -= shiftwidth()
  endif
  return indent
endfunction
