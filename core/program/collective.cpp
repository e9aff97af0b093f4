#include "core/program/collective.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace isobar {

namespace {

using Ends = std::vector<std::size_t>;
using Sizes = std::vector<std::uint64_t>;  // whole bytes

Ends all_ends(std::size_t count)
{
  Ends ends(count);
  std::iota(ends.begin(), ends.end(), std::size_t{0});
  return ends;
}

std::uint64_t whole_bytes(Bytes size)
{
  ensure(size.value >= 0 && size.value <= 0x1p53, "a collective of more data than 2^53 bytes, or of less than none");
  return static_cast<std::uint64_t>(std::ceil(size.value));
}

/// The largest of `parts` nearly equal parts.
std::uint64_t largest_part(std::uint64_t size, std::uint64_t parts)
{
  return size / parts + (size % parts == 0 ? 0 : 1);
}

/// The first byte of part `index` of `parts` nearly equal ones.
std::uint64_t begin_of_part(std::uint64_t size, std::uint64_t parts, std::uint64_t index)
{
  return size / parts * index + size % parts * index / parts;
}

std::uint64_t sum_of(const Sizes& sizes)
{
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

Flow flow_of(std::size_t from, std::size_t to, std::uint64_t message, std::uint64_t messages = 1)
{
  return {from, to, Bytes(static_cast<double>(message)), messages};
}

/// A ring over `ends`: `messages` messages from each to the next. `message_of` has the size of those that the end at an
/// index sends.
template <typename MessageOf>
void add_ring(const Ends& ends, std::uint64_t messages, MessageOf message_of, Round& round)
{
  if (ends.size() < 2) return;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    round.push_back(flow_of(ends[i], ends[(i + 1) % ends.size()], message_of(i), messages));
  }
}

/// The ring of an AllReduce of `size` bytes.
void add_all_reduce(const Ends& ends, std::uint64_t size, Round& round)
{
  add_ring(
      ends, 2 * (ends.size() - 1), [&](std::size_t) { return largest_part(size, ends.size()); }, round);
}

/// The ring of a ReduceScatter after which each end has a part of these sizes. A part travels from the end after its
/// own around the ring, so the end itself does not send it.
void add_reduce_scatter(const Ends& ends, const Sizes& parts, Round& round)
{
  const std::uint64_t all = sum_of(parts);
  const std::uint64_t messages = ends.size() - 1;
  add_ring(
      ends, messages, [&](std::size_t i) { return largest_part(all - parts[i], messages); }, round);
}

/// The ring of an AllGather of parts of these sizes. A part travels from its own end around the ring, so no end sends
/// the part of the next.
void add_all_gather(const Ends& ends, const Sizes& parts, Round& round)
{
  const std::uint64_t all = sum_of(parts);
  const std::uint64_t messages = ends.size() - 1;
  add_ring(
      ends, messages, [&](std::size_t i) { return largest_part(all - parts[(i + 1) % ends.size()], messages); }, round);
}

/// The sizes of the parts of a ReduceScatter of all ends: all the largest, so that the flows are alike.
Sizes equal_parts(std::uint64_t size, std::size_t ends)
{
  return Sizes(ends, largest_part(size, ends));
}

std::vector<Round> ring_rounds(Opcode opcode, const Sizes& sizes)
{
  const Ends ends = all_ends(sizes.size());
  Round round;
  if (opcode == Opcode::AllReduce) add_all_reduce(ends, sizes.front(), round);
  if (opcode == Opcode::ReduceScatter) add_reduce_scatter(ends, equal_parts(sizes.front(), ends.size()), round);
  if (opcode == Opcode::AllGather) add_all_gather(ends, sizes, round);
  return {round};
}

/// Every end sends each other end one message; `message_of` has its size by sender and receiver.
template <typename MessageOf>
Round exchange(std::size_t ends, MessageOf message_of)
{
  Round round;
  for (std::size_t from = 0; from < ends; ++from) {
    for (std::size_t to = 0; to < ends; ++to) {
      if (to != from) round.push_back(flow_of(from, to, message_of(from, to)));
    }
  }
  return round;
}

/// As `exchange`, but each end sends to one end and receives from one at a time.
template <typename MessageOf>
std::vector<Round> exchange_in_pairs(std::size_t ends, MessageOf message_of)
{
  std::vector<Round> rounds;
  for (std::size_t shift = 1; shift < ends; ++shift) {
    Round& round = rounds.emplace_back();
    for (std::size_t from = 0; from < ends; ++from) {
      const std::size_t to = (from + shift) % ends;
      round.push_back(flow_of(from, to, message_of(from, to)));
    }
  }
  return rounds;
}

/// The same of the ends of equal sites: each round shifts sites and places in them by two numbers, and an end meets the
/// one at the shifted place of the shifted site.
template <typename MessageOf>
std::vector<Round> exchange_by_sites(const std::vector<Ends>& sites, MessageOf message_of)
{
  const std::size_t places = sites.front().size();
  std::vector<Round> rounds;
  for (std::size_t shift = 1; shift < sites.size() * places; ++shift) {
    Round& round = rounds.emplace_back();
    for (std::size_t site = 0; site < sites.size(); ++site) {
      for (std::size_t place = 0; place < places; ++place) {
        const std::size_t from = sites[site][place];
        const std::size_t to = sites[(site + shift / places) % sites.size()][(place + shift % places) % places];
        round.push_back(flow_of(from, to, message_of(from, to)));
      }
    }
  }
  return rounds;
}

std::vector<Round> direct_rounds(Opcode opcode, const Sizes& sizes)
{
  const std::size_t ends = sizes.size();
  const Round parts =
      exchange(ends, [&](std::size_t from, std::size_t /*to*/) { return largest_part(sizes[from], ends); });
  if (opcode == Opcode::AllReduce) return {parts, parts};
  if (opcode == Opcode::AllGather) {
    return {exchange(ends, [&](std::size_t from, std::size_t /*to*/) { return sizes[from]; })};
  }
  return {parts};
}

std::vector<Round> server_rounds(Opcode opcode, const Sizes& sizes)
{
  const std::uint64_t all = opcode == Opcode::AllGather ? sum_of(sizes) : sizes.front();
  Round to_server;
  Round back;
  for (std::size_t end = 1; end < sizes.size(); ++end) {
    to_server.push_back(flow_of(end, 0, sizes[end]));
    back.push_back(flow_of(0, end, opcode == Opcode::ReduceScatter ? largest_part(all, sizes.size()) : all));
  }
  return {to_server, back};
}

/// A round of a binomial tree away from end 0: those that have the data, 0, 2 step, 4 step, …, send to the ends
/// `step` further. `message_of` has the size by receiver.
template <typename MessageOf>
Round away_from_root(std::size_t ends, std::size_t step, MessageOf message_of)
{
  Round round;
  for (std::size_t to = step; to < ends; to += 2 * step) round.push_back(flow_of(to - step, to, message_of(to)));
  return round;
}

std::vector<Round> tree_rounds(Opcode opcode, const Sizes& sizes)
{
  const std::size_t ends = sizes.size();
  // What the ends from..from+step-1 hold together: their parts of a gathered or scattered whole.
  const auto parts_of = [&](std::size_t from, std::size_t step) {
    const std::size_t to = std::min(from + step, ends);
    if (opcode == Opcode::AllGather) {
      return std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(from),
                             sizes.begin() + static_cast<std::ptrdiff_t>(to), std::uint64_t{0});
    }
    return (to - from) * largest_part(sizes.front(), ends);
  };
  const std::uint64_t all = opcode == Opcode::AllGather ? sum_of(sizes) : sizes.front();
  std::vector<Round> to_root;
  std::vector<Round> back;
  for (std::size_t step = std::bit_ceil(ends) / 2; step > 0; step /= 2) {
    back.push_back(away_from_root(
        ends, step, [&](std::size_t to) { return opcode == Opcode::ReduceScatter ? parts_of(to, step) : all; }));
    to_root.push_back(away_from_root(
        ends, step, [&](std::size_t from) { return opcode == Opcode::AllGather ? parts_of(from, step) : all; }));
  }
  if (opcode == Opcode::Broadcast) return back;
  std::reverse(to_root.begin(), to_root.end());
  for (auto& round : to_root) {
    for (auto& flow : round) std::swap(flow.from, flow.to);
  }
  to_root.insert(to_root.end(), back.begin(), back.end());
  return to_root;
}

/// Bytes begin..end-1 of the data, which the end at index `owner` of a site holds.
struct Piece {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t owner = 0;
};
/// Pieces in their order, each beginning where the one before ends.
using Division = std::vector<Piece>;

/// Appends the bytes begin..end-1 in `owners` nearly equal pieces.
void add_pieces(std::uint64_t begin, std::uint64_t end, std::size_t owners, Division& division)
{
  for (std::size_t owner = 0; owner < owners; ++owner) {
    division.push_back({begin + begin_of_part(end - begin, owners, owner),
                        begin + begin_of_part(end - begin, owners, owner + 1), owner});
  }
}

/// How many of the bytes begin..end-1 each owner holds.
Sizes held(const Division& division, std::size_t owners, std::uint64_t begin, std::uint64_t end)
{
  Sizes sizes(owners, 0);
  for (const auto& piece : division) {
    const std::uint64_t from = std::max(piece.begin, begin);
    const std::uint64_t to = std::min(piece.end, end);
    if (from < to) sizes[piece.owner] += to - from;
  }
  return sizes;
}

/// The range of an owner's piece in a division of one chunk.
ValueRange range_of(const Division& division, std::size_t owner)
{
  for (const auto& piece : division) {
    if (piece.owner == owner) return {piece.begin, piece.end};
  }
  throw std::logic_error("an end without a piece of an AllReduce");
}

Division equal_pieces(std::uint64_t begin, std::uint64_t end, std::size_t owners)
{
  Division division;
  add_pieces(begin, end, owners, division);
  return division;
}

/// A ReduceScatter over a ring of `ends`, by which the end at index `place` gets the sum of its own piece.
void add_scattering_steps(const Ends& ends, std::size_t place, const Division& pieces,
                          std::vector<CollectiveStep>& steps)
{
  const std::size_t count = ends.size();
  for (std::size_t step = 0; step + 1 < count; ++step) {
    steps.push_back({ends[(place + 1) % count], range_of(pieces, (place + 2 * count - step - 1) % count),
                     ends[(place + count - 1) % count], range_of(pieces, (place + 2 * count - step - 2) % count),
                     true});
  }
}

/// An AllGather over a ring of `ends`, of which the one at index `place` has its own piece.
void add_gathering_steps(const Ends& ends, std::size_t place, const Division& pieces,
                         std::vector<CollectiveStep>& steps)
{
  const std::size_t count = ends.size();
  for (std::size_t step = 0; step + 1 < count; ++step) {
    steps.push_back({ends[(place + 1) % count], range_of(pieces, (place + count - step) % count),
                     ends[(place + count - 1) % count], range_of(pieces, (place + 2 * count - step - 1) % count),
                     false});
  }
}

std::size_t place_of(std::size_t end, const Ends& ends)
{
  return static_cast<std::size_t>(std::find(ends.begin(), ends.end(), end) - ends.begin());
}

std::vector<CollectiveStep> ring_steps(Opcode opcode, std::size_t end, const Ends& ends, ValueRange values)
{
  std::vector<CollectiveStep> steps;
  const Division pieces = equal_pieces(values.begin, values.end, ends.size());
  if (opcode != Opcode::AllGather) add_scattering_steps(ends, place_of(end, ends), pieces, steps);
  if (opcode != Opcode::ReduceScatter) add_gathering_steps(ends, place_of(end, ends), pieces, steps);
  return steps;
}

std::vector<CollectiveStep> tree_steps(Opcode opcode, std::size_t end, std::size_t ends, std::size_t values)
{
  const ValueRange all = {0, values};
  // The parts of the ends from..from+step-1.
  const auto parts_of = [&](std::size_t from, std::size_t step) {
    return ValueRange{begin_of_part(values, ends, from), begin_of_part(values, ends, std::min(from + step, ends))};
  };
  const bool adds = opcode != Opcode::AllGather;
  std::vector<CollectiveStep> to_root;
  std::vector<CollectiveStep> back;
  for (std::size_t step = 1; step < ends; step *= 2) {
    const bool is_leaf = end % (2 * step) == step;
    const std::size_t below = is_leaf ? end : end + step;
    if (below >= ends) continue;
    const ValueRange up = adds ? all : parts_of(below, step);
    const ValueRange down = opcode == Opcode::ReduceScatter ? parts_of(below, step) : all;
    if (is_leaf) {
      to_root.push_back({end - step, up, {}, {}, false});
      back.push_back({{}, {}, end - step, down, false});
      break;
    }
    to_root.push_back({{}, {}, below, up, adds});
    back.push_back({below, down, {}, {}, false});
  }
  to_root.insert(to_root.end(), back.rbegin(), back.rend());
  return to_root;
}

std::vector<CollectiveStep> direct_steps(Opcode opcode, std::size_t end, std::size_t ends, std::size_t values)
{
  const Division pieces = equal_pieces(0, values, ends);
  std::vector<CollectiveStep> steps;
  for (const bool adds : {true, false}) {
    if (opcode == (adds ? Opcode::AllGather : Opcode::ReduceScatter)) continue;
    for (std::size_t shift = 1; shift < ends; ++shift) {
      const std::size_t to = (end + shift) % ends;
      const std::size_t from = (end + ends - shift) % ends;
      steps.push_back({to, range_of(pieces, adds ? to : end), from, range_of(pieces, adds ? end : from), adds});
    }
  }
  return steps;
}

std::vector<CollectiveStep> server_steps(Opcode opcode, std::size_t end, std::size_t ends, std::size_t values)
{
  const ValueRange all = {0, values};
  const bool adds = opcode != Opcode::AllGather;
  std::vector<CollectiveStep> to_server;
  std::vector<CollectiveStep> back;
  for (std::size_t other = 1; other < ends; ++other) {
    if (end != 0 && end != other) continue;
    const ValueRange part = {begin_of_part(values, ends, other), begin_of_part(values, ends, other + 1)};
    const ValueRange up = adds ? all : part;
    const ValueRange down = opcode == Opcode::ReduceScatter ? part : all;
    if (end == 0) {
      to_server.push_back({{}, {}, other, up, adds});
      back.push_back({other, down, {}, {}, false});
    } else {
      to_server.push_back({0, up, {}, {}, false});
      back.push_back({{}, {}, 0, down, false});
    }
  }
  to_server.insert(to_server.end(), back.begin(), back.end());
  return to_server;
}

/// Collectives among ends in several sites, whose first `leaders_` ends each form rings across the sites.
///
/// The data are chunks, one after another: a single one of an AllReduce, else one per site, the parts of its ends.
class Hierarchy {
 public:
  Hierarchy(Opcode opcode, const Sizes& sizes, std::vector<Ends> sites) : opcode_(opcode), sites_(std::move(sites))
  {
    leaders_ = sites_.front().size();
    for (const auto& site : sites_) leaders_ = std::min(leaders_, site.size());
    if (opcode == Opcode::AllReduce) {
      chunks_.push_back(sizes.front());
      add_pieces(0, sizes.front(), leaders_, leading_);
      return;
    }
    for (const auto& site : sites_) {
      Division& parts = parts_.emplace_back();
      std::uint64_t end = chunks_.back();
      for (std::size_t owner = 0; owner < site.size(); ++owner) {
        const std::uint64_t begin = end;
        end += opcode == Opcode::AllGather ? sizes[site[owner]] : largest_part(sizes.front(), sizes.size());
        parts.push_back({begin, end, owner});
      }
      if (site.size() == leaders_) {
        leading_.insert(leading_.end(), parts.begin(), parts.end());
      } else {
        add_pieces(chunks_.back(), end, leaders_, leading_);
      }
      chunks_.push_back(end);
    }
  }

  std::vector<Round> rounds() const
  {
    std::vector<Round> rounds;
    if (opcode_ == Opcode::AllGather) {
      rounds.push_back(moves_of_parts(true));
    } else {
      rounds.push_back(rings_within(add_reduce_scatter));
      rounds.push_back(moves_of_all(true));
    }
    rounds.push_back(rings_across());
    if (opcode_ == Opcode::ReduceScatter) {
      rounds.push_back(moves_of_parts(false));
    } else {
      rounds.push_back(moves_of_all(false));
      rounds.push_back(rings_within(add_all_gather));
    }
    std::erase_if(rounds, [](const Round& round) { return round.empty(); });
    return rounds;
  }

  /// The steps of an end of an AllReduce, or the half of them that is a ReduceScatter or an AllGather.
  std::vector<CollectiveStep> steps(Opcode of, std::size_t end) const
  {
    const Ends& site = site_of(end);
    const std::size_t place = place_of(end, site);
    const Division pieces = spread(site);
    std::vector<CollectiveStep> steps;
    if (of != Opcode::AllGather) {
      add_scattering_steps(site, place, pieces, steps);
      add_move_steps(site, place, pieces, true, steps);
    }
    if (place < leaders_) {
      const auto across = ring_steps(of, end, ends_across(place), range_of(leading_, place));
      steps.insert(steps.end(), across.begin(), across.end());
    }
    if (of != Opcode::ReduceScatter) {
      add_move_steps(site, place, pieces, false, steps);
      add_gathering_steps(site, place, pieces, steps);
    }
    return steps;
  }

  /// The part of the sums of an AllReduce that an end has after the first half of its steps.
  ValueRange part(std::size_t end) const
  {
    const std::size_t place = place_of(end, site_of(end));
    const ValueRange led = range_of(leading_, place);
    return range_of(equal_pieces(led.begin, led.end, sites_.size()), place_of(end, ends_across(place)));
  }

 private:
  const Ends& site_of(std::size_t end) const
  {
    return *std::find_if(sites_.begin(), sites_.end(),
                         [&](const Ends& ends) { return place_of(end, ends) < ends.size(); });
  }

  /// The ring across the sites of the ends at that place in theirs.
  Ends ends_across(std::size_t place) const
  {
    Ends ends;
    for (const auto& site : sites_) ends.push_back(site[place]);
    return ends;
  }

  /// The division of all data over the ends of a site.
  Division spread(const Ends& site) const
  {
    if (site.size() == leaders_) return leading_;
    Division division;
    for (std::size_t i = 0; i + 1 < chunks_.size(); ++i) {
      add_pieces(chunks_[i], chunks_[i + 1], site.size(), division);
    }
    return division;
  }

  Round rings_within(void (*add)(const Ends&, const Sizes&, Round&)) const
  {
    Round round;
    for (const auto& site : sites_) add(site, held(spread(site), site.size(), 0, chunks_.back()), round);
    return round;
  }

  Round rings_across() const
  {
    Round round;
    for (std::size_t leader = 0; leader < leaders_; ++leader) {
      const Ends ends = ends_across(leader);
      Sizes parts;  // by chunk
      for (std::size_t i = 0; i + 1 < chunks_.size(); ++i) {
        parts.push_back(held(leading_, leaders_, chunks_[i], chunks_[i + 1])[leader]);
      }
      if (opcode_ == Opcode::AllReduce) add_all_reduce(ends, parts.front(), round);
      if (opcode_ == Opcode::ReduceScatter) add_reduce_scatter(ends, parts, round);
      if (opcode_ == Opcode::AllGather) add_all_gather(ends, parts, round);
    }
    return round;
  }

  /// Between all ends of a site and its leaders.
  Round moves_of_all(bool to_leaders) const
  {
    Round round;
    for (const auto& site : sites_) add_moves(site, spread(site), to_leaders, round);
    return round;
  }

  /// Between the owners of a site's parts and its leaders.
  Round moves_of_parts(bool to_leaders) const
  {
    Round round;
    for (std::size_t i = 0; i < sites_.size(); ++i) add_moves(sites_[i], parts_[i], to_leaders, round);
    return round;
  }

  /// What the ends of a site pass between their division and that of the leaders.
  struct Move {
    std::size_t leader = 0;  // indices of ends of the site
    std::size_t owner = 0;
    ValueRange range;
  };

  std::vector<Move> moves_between(const Division& division) const
  {
    std::vector<Move> moves;
    auto piece = division.begin();
    for (auto leading = leading_.begin(); piece != division.end() && leading != leading_.end();) {
      const std::uint64_t from = std::max(piece->begin, leading->begin);
      const std::uint64_t to = std::min(piece->end, leading->end);
      if (from < to && piece->owner != leading->owner) moves.push_back({leading->owner, piece->owner, {from, to}});
      if (piece->end <= leading->end) {
        ++piece;
      } else {
        ++leading;
      }
    }
    return moves;
  }

  /// The flows of these moves. An end without data takes part by a message of 0 bytes.
  void add_moves(const Ends& site, const Division& division, bool to_leaders, Round& round) const
  {
    std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> moved;  // by leader and owner
    for (std::size_t owner = leaders_; owner < site.size(); ++owner) moved[{owner * leaders_ / site.size(), owner}] = 0;
    for (const auto& move : moves_between(division)) moved[{move.leader, move.owner}] += move.range.size();
    for (const auto& [owners, bytes] : moved) {
      const std::size_t leader = site[owners.first];
      const std::size_t other = site[owners.second];
      round.push_back(to_leaders ? flow_of(other, leader, bytes) : flow_of(leader, other, bytes));
    }
  }

  /// The part of the end at index `place`. All ends of a site follow the same list, so that none waits for another in
  /// a circle.
  void add_move_steps(const Ends& site, std::size_t place, const Division& division, bool to_leaders,
                      std::vector<CollectiveStep>& steps) const
  {
    for (const auto& move : moves_between(division)) {
      const std::size_t from = to_leaders ? move.owner : move.leader;
      const std::size_t to = to_leaders ? move.leader : move.owner;
      if (place == from) steps.push_back({site[to], move.range, {}, {}, false});
      if (place == to) steps.push_back({{}, {}, site[from], move.range, false});
    }
  }

  Opcode opcode_;
  std::vector<Ends> sites_;
  std::size_t leaders_ = 0;
  Sizes chunks_{0};              // where each begins, then the size of all
  std::vector<Division> parts_;  // by site
  Division leading_;             // of all data over the leaders of each site
};

/// The rounds of a ReduceScatter or AllToAll after which the ends have `results`.
std::vector<Round> uneven_rounds(Opcode opcode, Algorithm algorithm, const std::vector<Bytes>& sizes,
                                 const std::vector<Bytes>& results)
{
  const std::size_t ends = sizes.size();
  if (ends == 1) return {};
  if (opcode == Opcode::AllToAll) {
    constexpr double rounding = 1e-15;  // of a product and a quotient
    double all = 0;
    for (const Bytes result : results) all += result.value;
    return exchange_in_pairs(ends, [&](std::size_t from, std::size_t to) {
      return whole_bytes(Bytes(sizes[from].value * results[to].value / all * (1 - rounding)));
    });
  }
  ensure(opcode == Opcode::ReduceScatter, "results of a collective into equal parts");
  Sizes parts;
  for (const Bytes result : results) parts.push_back(whole_bytes(result));
  if (algorithm == Algorithm::Direct) {
    return {exchange(ends, [&](std::size_t /*from*/, std::size_t to) { return parts[to]; })};
  }
  ensure(algorithm == Algorithm::Ring, "unequal parts of an algorithm that has equal ones");
  Round round;
  add_reduce_scatter(all_ends(ends), parts, round);
  return {round};
}

/// The ends of each site, in the order in which the sites first appear.
std::vector<Ends> ends_by_site(const std::vector<std::string>& names)
{
  std::map<std::string, std::size_t> index;
  std::vector<Ends> sites;
  for (std::size_t end = 0; end < names.size(); ++end) {
    const auto [site, is_new] = index.try_emplace(names[end], sites.size());
    if (is_new) sites.emplace_back();
    sites[site->second].push_back(end);
  }
  return sites;
}

}  // namespace

std::vector<Round> rounds_of(Opcode opcode, const std::vector<Bytes>& size, Algorithm algorithm,
                             const std::vector<std::string>& sites, const std::vector<Bytes>& results)
{
  ensure(is_collective(opcode), "rounds of an instruction that is no collective");
  ensure(!size.empty(), "a collective without ends");
  ensure(sites.size() == size.size() || (sites.empty() && algorithm != Algorithm::Hierarchical),
         "a collective needs a site for each end");
  Sizes sizes;
  for (const Bytes bytes : size) sizes.push_back(whole_bytes(bytes));
  if (!results.empty()) {
    ensure(results.size() == size.size(), "a collective needs a result for each end");
    return uneven_rounds(opcode, algorithm, size, results);
  }
  const bool is_even = std::all_of(sizes.begin(), sizes.end(), [&](auto bytes) { return bytes == sizes.front(); });
  ensure(is_even || (opcode != Opcode::AllReduce && opcode != Opcode::ReduceScatter),
         "ends of one sum with data of different sizes");
  if (sizes.size() == 1) return {};
  if (opcode == Opcode::Broadcast) return tree_rounds(opcode, sizes);
  if (opcode == Opcode::AllToAll) {
    const auto message = [&](std::size_t from, std::size_t /*to*/) { return largest_part(sizes[from], sizes.size()); };
    if (algorithm == Algorithm::Hierarchical && are_equal_sites(sites)) {
      return exchange_by_sites(ends_by_site(sites), message);
    }
    return exchange_in_pairs(sizes.size(), message);
  }
  switch (algorithm) {
    case Algorithm::Ring:
      return ring_rounds(opcode, sizes);
    case Algorithm::Hierarchical: {
      auto ends = ends_by_site(sites);
      return ends.size() == 1 ? ring_rounds(opcode, sizes) : Hierarchy(opcode, sizes, std::move(ends)).rounds();
    }
    case Algorithm::Tree:
      return tree_rounds(opcode, sizes);
    case Algorithm::Direct:
      return direct_rounds(opcode, sizes);
    case Algorithm::Server:
      return server_rounds(opcode, sizes);
  }
  throw std::logic_error("an algorithm without rounds");
}

bool has_equal_parts(const std::vector<Bytes>& results)
{
  return std::all_of(results.begin(), results.end(), [](Bytes result) { return result == Bytes(0); });
}

bool are_equal_sites(const std::vector<std::string>& sites)
{
  const auto by_site = ends_by_site(sites);
  return std::all_of(by_site.begin(), by_site.end(),
                     [&](const Ends& ends) { return ends.size() == by_site.front().size(); });
}

ValueRange part_of_end(std::size_t end, std::size_t ends, std::size_t values, Algorithm algorithm,
                       const std::vector<std::string>& sites)
{
  ensure(end < ends, "a part of an end that a collective lacks");
  if (algorithm == Algorithm::Hierarchical) {
    auto by_site = ends_by_site(sites);
    if (by_site.size() > 1) {
      ensure(are_equal_sites(sites), "parts of ends need equal sites");
      return Hierarchy(Opcode::AllReduce, Sizes{values}, std::move(by_site)).part(end);
    }
  }
  return {begin_of_part(values, ends, end), begin_of_part(values, ends, end + 1)};
}

std::vector<CollectiveStep> steps_of(Opcode opcode, std::size_t end, std::size_t ends, std::size_t values,
                                     Algorithm algorithm, const std::vector<std::string>& sites)
{
  ensure(opcode == Opcode::AllReduce || opcode == Opcode::ReduceScatter || opcode == Opcode::AllGather,
         "a collective without steps");
  ensure(end < ends, "a step of an end that a collective lacks");
  ensure(sites.size() == ends || (sites.empty() && algorithm != Algorithm::Hierarchical),
         "a collective needs a site for each end");
  switch (algorithm) {
    case Algorithm::Ring:
      return ring_steps(opcode, end, all_ends(ends), {0, values});
    case Algorithm::Hierarchical: {
      auto by_site = ends_by_site(sites);
      if (by_site.size() == 1) return ring_steps(opcode, end, all_ends(ends), {0, values});
      ensure(opcode == Opcode::AllReduce || are_equal_sites(sites), "parts of ends need equal sites");
      return Hierarchy(Opcode::AllReduce, Sizes{values}, std::move(by_site)).steps(opcode, end);
    }
    case Algorithm::Tree:
      return tree_steps(opcode, end, ends, values);
    case Algorithm::Direct:
      return direct_steps(opcode, end, ends, values);
    case Algorithm::Server:
      return server_steps(opcode, end, ends, values);
  }
  throw std::logic_error("an algorithm without steps");
}

}  // namespace isobar
