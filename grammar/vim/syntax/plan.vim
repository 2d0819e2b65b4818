" Syntax of .plan files. What is a keyword depends on where it stands: at the beginning of a statement, in which block.
if exists("b:current_syntax")
  finish
endif
let s:keep = &cpo
set cpo&vim

syntax case match
syntax sync fromstart

syntax match planComment "#.*$" contains=@Spell
syntax region planString start=+"+ skip=+\\\\\|\\"+ end=+"\|$+ contains=planEscape,planBadEscape oneline
syntax match planBadEscape "\\." contained
syntax match planEscape "\\[ntr\"\\]" contained

syntax match planName "\<\h\w*\>"
syntax match planOperator "->\|==\|!=\|<=\|>=\|[-+*/=<>]\|\.\.\.\|\.\."
syntax match planFunction "\<\h\w*\>\ze\s*("
syntax keyword planBoolean true false none auto
syntax match planLogical "\<\%(and\|or\|not\)\>\ze\s\+[[:alnum:]_(\[-]"

" Reserved words stand anywhere.
syntax keyword planReserved over on using padded uneven repeated along
syntax match planLike "\%(=\s*\)\@<=like\>\ze\s\+\h"

" A number and its unit are one token.
syntax match planUnit "\%([KMGTP]\?FLOP/s\|[MGT]iB/s\|[KkMGT]\?[bB]/s\|[GTP]\?FLOPS\|[KkMG]\?Hz\|[KMGT]iB\|bytes\|[KkMGTP]\?B\|[Kk]\?W\|[mun]\?s\)\ze\%(\W\|$\)" contained
syntax match planNumber "\<\d\+\>" nextgroup=planUnit skipwhite
syntax match planFloat "\<\d\+\.\d\+\%([eE][-+]\?\d\+\)\?\>\|\<\d\+[eE][-+]\?\d\+\>" nextgroup=planUnit skipwhite
syntax match planNumber "\<\d\+\ze\%([KMGTP]\?FLOP/s\|[MGT]iB/s\|[KkMGT]\?[bB]/s\|[KkMG]\?Hz\|[KMGT]iB\|[KkMGTP]\?B\|[Kk]\?W\|[mun]\?s\)\>" nextgroup=planUnit

" Declarations stand at the beginning of a line; the name follows.
syntax match planImport "^import\>\ze\s\+\h"
syntax match planImport "\<as\>\ze\s\+\h\w*\s*\%({\|$\|#\)"
syntax match planDeclaration "^const\>\ze\s\+\h"
syntax match planDeclaration "^layer\>\ze\s\+\h\w*\s*(" nextgroup=planLayerName skipwhite
syntax match planDeclaration "^model\>\ze\s\+\h\w*\s*[({=]" nextgroup=planTypeName skipwhite
syntax match planDeclaration "^\%(gpu\|cluster\)\>\ze\s\+\h\w*\s*{" nextgroup=planTypeName skipwhite
syntax match planDeclaration "^train\>\ze\%(\s\+\h\w*\)\?\s*{" nextgroup=planTypeName skipwhite
syntax match planDeclaration "^plan\>\ze\s\+\h\w*\s*\%(on\>\|{\)" nextgroup=planTypeName skipwhite
syntax match planLayerName "\h\w*" contained
syntax match planTypeName "\h\w*" contained

" Statements of layers and models, wherever a line begins with one and it is not the name of something.
syntax match planStatement "\%(^\s\+\|{\s*\)\@<=\%(input\|target\|weight\)\>\ze\s\+\h\w*\s*:"
syntax match planStatement "\%(^\s\+\|{\s*\)\@<=dim\>\ze\s\+\h"
syntax match planStatement "\%(^\s\+\|{\s*\)\@<=factors\>\ze\s\+\h\w*\s*="
syntax match planStatement "\%(^\s\+\|{\s*\)\@<=\%(return\|auxiliary\|log\)\>\%(\s*\%(==\@!\|[,.:]\)\)\@!"
syntax match planStatement "\%(^\s\+\|{\s*\)\@<=names\>\ze\s\+\h\w*\s*{"
syntax match planStatement "\%(^\s\+\|{\s*\)\@<=mesh\>\ze\s\+\h\w*\s*="
syntax match planStatement "\%(^\s\+\|{\s*\)\@<=in\>\ze\s\+\h[[:alnum:]_.]*\s*\%(\d\|{\)"
syntax match planRepeat "\%(^\s\+\|{\s*\)\@<=repeat\>\ze\s\+\h"
syntax match planConditional "\%(^\s\+\|{\s*\|\<else\s\+\)\@<=if\>\%(\s*\%(==\@!\|[,.:]\)\)\@!"
syntax match planConditional "\<else\>\ze\s*\%({\|if\>\)"
syntax match planElement "\%(:\s*\)\@<=\%(int\|float\|bool\)\>\ze\s*\["

" Properties: the first word of a line in gpu, cluster, train and plan blocks, which begin at the left edge.
syntax region planProperties matchgroup=planBrace start="\%(^\%(gpu\|cluster\|train\|plan\)\>[^{#]*\)\@<={" end="}" transparent fold contains=ALLBUT,planProperties,planEscape,planBadEscape,planUnit,planLayerName,planTypeName
syntax region planNested matchgroup=planBrace start="{" end="}" contained transparent contains=ALLBUT,planProperties,planEscape,planBadEscape,planUnit,planLayerName,planTypeName
syntax match planProperty "^\s\+\zs\%(in\>\)\@!\h\w*\>\%(\s*[,.:({]\|\s\+on\>\|\s\+\%(uneven\|padded\|repeated\)\>\|\s\+\h\w*\s*=\)\@!" contained
syntax match planProperty "^\s\+\zsdata\>\ze\s\+\h\w*\s*=" contained
syntax match planAxis "\%(\<mesh\s[^#]*\)\@<=\<\h\w*\ze\s*=" contained
syntax match planAxis "\%(\<on\s\+\%(\h\w*\s*,\s*\)*\)\@<=\<\h\w*\>" contained
syntax match planSchedule "\%(\<using\s\+\)\@<=\<\h\w*\>" contained

highlight default link planComment Comment
highlight default link planString String
highlight default link planEscape SpecialChar
highlight default link planBadEscape Error
highlight default link planOperator Operator
highlight default link planLogical Operator
highlight default link planFunction Function
highlight default link planBoolean Boolean
highlight default link planReserved Keyword
highlight default link planLike Keyword
highlight default link planUnit Special
highlight default link planNumber Number
highlight default link planFloat Float
highlight default link planImport Include
highlight default link planDeclaration Structure
highlight default link planLayerName Function
highlight default link planTypeName Type
highlight default link planStatement Statement
highlight default link planRepeat Repeat
highlight default link planConditional Conditional
highlight default link planElement Type
highlight default link planProperty Identifier
highlight default link planAxis Identifier
highlight default link planSchedule Function

let b:current_syntax = "plan"
let &cpo = s:keep
unlet s:keep
