" How .plan files are edited: comments, indentation, `:make` with plc's messages in the quickfix list.
if exists("b:did_ftplugin")
  finish
endif
let b:did_ftplugin = 1

setlocal commentstring=#\ %s
setlocal comments=:#
setlocal formatoptions-=t formatoptions+=croql
setlocal shiftwidth=4 softtabstop=4 expandtab
setlocal suffixesadd=.plan
setlocal include=^import\\s\\+
setlocal includeexpr=substitute(v:fname,'\\.','/','g').'.plan'
let &l:define = '^\s*\%(layer\|model\|gpu\|cluster\|plan\|train\)\s\+'

setlocal makeprg=plc\ check\ %:S
setlocal errorformat=%Eerror[P%n]:\ %m,%Wwarning[P%n]:\ %m,%Inote[P%n]:\ %m,%Iperformance[P%n]:\ %m,%Z\ %#-->\ %f:%l:%c,%-G%.%#

let b:undo_ftplugin = "setlocal commentstring< comments< formatoptions< shiftwidth< softtabstop< expandtab< suffixesadd< include< includeexpr< define< makeprg< errorformat<"
