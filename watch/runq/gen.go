package runq

//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Werror -mcpu=v3" -type group -type cpu -type watched -type stamp -type origin -go-package runq runq bpf/runq.c
