/*
 * dlsym and dlvsym. RTLD_NEXT means "after the caller", whom glibc knows by the
 * return address: so the real function is jumped to, with the stack as the
 * caller left it. aq_dlsym_filter is handed the arguments, which it may change,
 * and returns the function to answer with, or NULL to let the real one answer.
 */
	.text

	.macro interpose name, filter, real
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	.cfi_startproc
	endbr64
	subq $24, %rsp
	.cfi_adjust_cfa_offset 24
	movq %rdi, (%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rsp, %rdi
	call \filter
	movq (%rsp), %rdi
	movq 8(%rsp), %rsi
	movq 16(%rsp), %rdx
	addq $24, %rsp
	.cfi_adjust_cfa_offset -24
	testq %rax, %rax
	jnz 1f
	jmp *\real(%rip)
1:	ret
	.cfi_endproc
	.size \name, . - \name
	.endm

	interpose dlsym, aq_dlsym_filter, aq_real_dlsym
	interpose dlvsym, aq_dlsym_filter, aq_real_dlvsym

	.section .note.GNU-stack, "", @progbits
