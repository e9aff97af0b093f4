#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// Messages that follow each other from one end of a collective's channel to another.
struct Flow {
  std::size_t from = 0;  ///< index of the sending end in Channel::ends
  std::size_t to = 0;
  Bytes message;               ///< a whole number of bytes
  std::uint64_t messages = 1;  ///< each pays the latency of the route

  Bytes size() const { return static_cast<double>(messages) * message; }
  bool operator==(const Flow&) const = default;
};

/// Flows that run at the same time. A round ends when all its flows have ended; then the next one begins.
using Round = std::vector<Flow>;

/// The rounds of a collective among the ends of a channel, which the simulator plays and cost models sum.
///
/// `size[i]` is the data of end i:
/// - AllReduce: what each end contributes and receives, the same for all.
/// - ReduceScatter: what each end contributes, the same for all; end i receives part i of n equal parts of the sum.
///   With `results`, these are the sizes of the parts, and sum to it.
/// - AllGather: the end's own part; every end receives all parts.
/// - AllToAll: n equal parts, of which part j goes to end j and the end's own stays. With `results`, these are what the
///   ends have afterwards, and part j of each end is in proportion to that of end j.
/// - Broadcast: what end 0 sends to all others; the other sizes do not count.
///
/// `sites[i]` names the site of end i; only Hierarchical uses it, and requires it. Messages are rounded up to whole
/// bytes: the messages of a flow are equal, so that unequal ones count by their mean. Data of 0 bytes are sent in
/// messages of 0 bytes, which take their latencies. One end: no rounds.
///
/// Ring: one round of n flows, from each end to the next. A flow of an AllReduce of D bytes has 2 (n-1) messages of D/n
/// bytes, one of a ReduceScatter n-1 of them, and one of an AllGather n-1 messages of all parts but that of its
/// receiver. It takes messages x latency + bytes / bandwidth: like a step for each message, in lockstep over equal
/// links.
///
/// Hierarchical: rings within each site, then rings across the sites, then rings within each site. An AllReduce of D
/// bytes sends 2 (u-1)/u D bytes into each of u sites. As many rings cross the sites as the smallest site has ends.
/// Where a site has more, those of its ends that are in no such ring pass their data to the others in a round before,
/// and receive the result in a round after.
///
/// Tree: binomial, to end 0 and back, in 2 ⌈log2 n⌉ rounds.
/// Direct: each end exchanges its parts with every other in one round; an AllReduce in two, a ReduceScatter and an
/// AllGather.
/// Server: end 0 receives from all others in one round, and sends to them in another.
/// AllToAll: n-1 rounds under every algorithm, in each of which an end sends to one end and receives from one, since it
/// has one network. Hierarchical over equal sites: in each round all ends meet one of their own site, or all meet one
/// of another one, so that no round of the network inside waits for the one between. Broadcast is a tree under every
/// algorithm. A ReduceScatter with `results` is a ring or direct. Source: Thakur et al., Optimization of Collective
/// Communication Operations in MPICH, 2005.
/// @throws std::logic_error for an opcode that is no collective, for different sizes of an AllReduce or ReduceScatter,
/// for sites or results of another number, and for results with another opcode or algorithm.
std::vector<Round> rounds_of(Opcode opcode, const std::vector<Bytes>& size, Algorithm algorithm,
                             const std::vector<std::string>& sites = {}, const std::vector<Bytes>& results = {});

/// Whether a collective whose ends have these Instruction::result is one into equal parts: all are 0.
bool has_equal_parts(const std::vector<Bytes>& results);

/// Values begin..end-1 of those of a collective.
struct ValueRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
  bool operator==(const ValueRange&) const = default;
};

/// Whether each site has as many of the ends, as a hierarchical ReduceScatter or AllGather of equal parts needs.
bool are_equal_sites(const std::vector<std::string>& sites);

/// The part of `values` values that belongs to one of `ends` ends: the one that it has the sum of after a
/// ReduceScatter, and brings to an AllGather. Parts of a ring differ by one value at most. Parts follow each other in
/// the order of the ends, of a hierarchical collective in the order of the ends of a site, and then of the sites.
/// @throws std::logic_error for a hierarchical collective of sites that are not equal.
ValueRange part_of_end(std::size_t end, std::size_t ends, std::size_t values, Algorithm algorithm,
                       const std::vector<std::string>& sites);

/// What an end of a collective does at one time: it sends values to one end, and receives values from one.
struct CollectiveStep {
  std::optional<std::size_t> to;
  ValueRange sent;
  std::optional<std::size_t> from;
  ValueRange received;
  bool adds = false;  ///< what it receives to its own values; else takes it in their place
};

/// The steps of one of `ends` ends by which a collective of `values` values sends what `rounds_of` describes, each end
/// one step after the other. No two ends wait for each other, even if a message is sent only while it is received. All
/// ends have room for all values:
/// - AllReduce: then all have the same sums, each value added up in one place. Hierarchical needs a site for each end.
/// - ReduceScatter: then each has the sums of its part (part_of_end), with the bits that an AllReduce gives; its other
///   values are of no use.
/// - AllGather: each brings its part, and then has all parts.
/// @throws std::logic_error for other opcodes, and as part_of_end does.
std::vector<CollectiveStep> steps_of(Opcode opcode, std::size_t end, std::size_t ends, std::size_t values,
                                     Algorithm algorithm, const std::vector<std::string>& sites = {});

}  // namespace isobar
