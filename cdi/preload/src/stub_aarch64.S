/*
 * dlsym and dlvsym for aarch64; see stub_x86_64.S. The return address, by which
 * glibc knows the caller, is in x30 and is restored before the jump.
 */
	.text

	.macro interpose name, filter, real
	.globl \name
	.type \name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint #34		/* bti c */
	stp x29, x30, [sp, #-48]!
	.cfi_adjust_cfa_offset 48
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	stp x0, x1, [sp, #16]
	str x2, [sp, #32]
	add x0, sp, #16
	bl \filter
	mov x3, x0
	ldp x0, x1, [sp, #16]
	ldr x2, [sp, #32]
	ldp x29, x30, [sp], #48
	.cfi_adjust_cfa_offset -48
	.cfi_restore x29
	.cfi_restore x30
	cbnz x3, 1f
	adrp x16, \real
	ldr x16, [x16, #:lo12:\real]
	br x16
1:	mov x0, x3
	ret
	.cfi_endproc
	.size \name, . - \name
	.endm

	interpose dlsym, aq_dlsym_filter, aq_real_dlsym
	interpose dlvsym, aq_dlsym_filter, aq_real_dlvsym

	.section .note.GNU-stack, "", %progbits
