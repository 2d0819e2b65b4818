" .plan files are of the language Plan.
autocmd BufNewFile,BufRead *.plan setfiletype plan
