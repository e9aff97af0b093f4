#include "allocators/planners/metis_groups.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::size_t most_blocks = 4;

using Sizes = std::vector<std::size_t>;

/// Multisets of powers of two, from `least` on, with a given number of them and a given sum.
class Multisets {
 public:
  Multisets(std::size_t least, std::size_t most) : least_(least), most_(most) {}

  /// The most equal ones first.
  std::vector<Sizes> all(std::size_t sum, std::size_t count)
  {
    for (std::size_t largest = least_; largest <= sum && found_.size() < most_; largest *= 2) {
      sizes_ = {largest};  // so that no multiset is found twice
      complete(sum - largest, count - 1, largest);
    }
    return std::move(found_);
  }

 private:
  /// Adds that number of sizes of at most `largest` with this sum, in every way.
  void complete(std::size_t sum, std::size_t count, std::size_t largest)
  {
    if (found_.size() >= most_ || !is_possible(sum, count, largest)) return;
    if (count == 0) {
      found_.emplace_back(sizes_.rbegin(), sizes_.rend());  // ascending
      return;
    }
    for (std::size_t size = largest; size >= least_; size /= 2) {
      if (size > sum) continue;
      sizes_.push_back(size);
      complete(sum - size, count - 1, size);
      sizes_.pop_back();
    }
  }

  /// The fewest sizes are as many of the largest as there are, and the bits of the rest; each can be halved down to the
  /// least.
  bool is_possible(std::size_t sum, std::size_t count, std::size_t largest) const
  {
    if (sum % least_ != 0) return false;
    const std::size_t fewest = sum / largest + static_cast<std::size_t>(std::popcount(sum % largest));
    return fewest <= count && count <= sum / least_;
  }

  std::size_t least_;
  std::size_t most_;
  Sizes sizes_;  // descending
  std::vector<Sizes> found_;
};

std::size_t sum_of(const Sizes& block)
{
  return std::accumulate(block.begin(), block.end(), std::size_t{0});
}

/// Joins the two neighbouring blocks that are smallest together, until there are few.
std::vector<Sizes> blocks_of(const Sizes& sizes)
{
  std::vector<Sizes> blocks;
  for (const std::size_t size : sizes) blocks.push_back({size});
  while (blocks.size() > most_blocks) {
    std::size_t least = 0;
    for (std::size_t i = 1; i + 1 < blocks.size(); ++i) {
      if (sum_of(blocks[i]) + sum_of(blocks[i + 1]) < sum_of(blocks[least]) + sum_of(blocks[least + 1])) least = i;
    }
    blocks[least].insert(blocks[least].end(), blocks[least + 1].begin(), blocks[least + 1].end());
    blocks.erase(std::next(blocks.begin(), static_cast<std::ptrdiff_t>(least) + 1));
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

}  // namespace

std::vector<std::vector<std::size_t>> group_sizes(std::size_t devices, std::size_t stages, std::size_t most)
{
  const std::size_t half_mean = (devices / stages + 1) / 2;
  std::vector<Sizes> orders;
  for (const auto& multiset :
       Multisets(std::bit_ceil(std::max<std::size_t>(half_mean, 1)), most).all(devices, stages)) {
    auto blocks = blocks_of(multiset);
    std::set<Sizes> seen;  // blocks of equal sizes may differ in length
    do {
      Sizes sizes;
      for (const auto& block : blocks) sizes.insert(sizes.end(), block.begin(), block.end());
      if (!seen.insert(sizes).second) continue;
      if (orders.size() == most) return orders;
      orders.push_back(std::move(sizes));
    } while (std::next_permutation(blocks.begin(), blocks.end()));
  }
  return orders;
}

}  // namespace isobar::allocators
