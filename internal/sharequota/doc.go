// Package sharequota holds a namespace to its ShareQuotas: what its claims count for, a ledger that lets a new claim in
// only if all still fit, and a reconciler that counts anew. It does not look at single shares, which the chart's admission
// policy does without it, and never touches a claim.
//
// # Why two claims never pass the last gap together
//
// Several replicas serve the webhook, and what one lets in may reach the store seconds later or never. So no replica
// trusts a cache or its memory. The ledger is the quota's status: status.used is what is counted, and each claim that was
// let in stands in status.reservations until it was seen stored. Both change in one update of the version that was read
// (compare and swap: the API server refuses an update of an older one).
//
// Claim: whenever an update succeeds, status.used counts every claim that was let in and is stored or may still be.
//
//   - Letting in adds the claim's amount and its reservation to a status that held the claim before. Of two replicas that
//     read the same version one is refused, reads again, and sees what the other took.
//   - Counting anew (recount) reads the quota, then lists the claims from the store itself, not from a cache, then writes.
//     If the write succeeds, the reservations were the same from reading to writing. A claim that was let in and is not in
//     the list is stored after the list was made, if at all. Its reservation was made before it is stored, so it is among
//     those that were read, and is kept and counted; had it been made in between, the write would be refused.
//   - A reservation goes only when its claim is in such a list, from then on counted as stored; or when it has stood for
//     Lifetime without its claim having been seen. A create request ends within 34 s (requestTimeoutUpperBound in
//     apiserver/pkg/endpoints/handlers/rest.go), so what was not stored by then never is. The time is measured by the one
//     who takes it away, from when it first saw the reservation: clocks of replicas need not agree.
//   - A reservation is also taken back at once if another quota of the namespace refuses the claim.
//
// What follows from it:
//
//   - A claim that is deleted is counted until the next recount, which the leader does within a second, and which Reserve does
//     itself before it refuses.
//   - A create that another admission plugin refuses afterwards keeps its reservation for Lifetime. Tried again it has a new
//     UID each time, but two claims of one name are never stored together, so a name counts once, with the most of what it
//     asked for. Only names that are generated anew with each try count each.
//   - The UID that admission sees is the stored one: it is set before admission (rest.FillObjectMetaSystemFields in
//     registry/generic/registry/store.go) and never taken from the user. A webhook call that is repeated finds its reservation.
//   - Two leaders, or a new one, do no harm: each lists and swaps.
//
// Not promised: claims that are created while no replica answers are let in by the API server, as is what existed before the
// quota. They are counted, and nothing more is let in until there is room. The same is true of a claim that counts for
// more than when it was let in: one that lost an allocation smaller than its request, and one that asks for whole
// devices when a larger one is published.
package sharequota
