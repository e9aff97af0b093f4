#include "allocators/exact/ladder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace isobar::allocators {

std::size_t Ladder::weakest() const
{
  const auto least = std::min_element(rungs_.begin(), rungs_.end(),
                                      [this](const Rung& a, const Rung& b) { return value(a) < value(b); });
  return static_cast<std::size_t>(least - rungs_.begin());
}

std::vector<std::size_t> Ladder::by_value() const
{
  std::vector<std::size_t> order(rungs_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](std::size_t a, std::size_t b) { return value(rungs_[a]) < value(rungs_[b]); });
  return order;
}

Ladder::Rung Ladder::split(std::size_t rung, double limit)
{
  Rung lower;
  lower.from = rungs_[rung].from;
  lower.limit = limit;
  rungs_[rung].from = limit;
  return lower;
}

Certificate Ladder::certificate(const std::vector<std::size_t>& groups, std::size_t levels) const
{
  Certificate certificate;
  certificate.kind = CertificateKind::Path;
  certificate.groups = groups;
  certificate.levels = levels;
  std::vector<Rung> sorted = rungs_;
  std::sort(sorted.begin(), sorted.end(), [](const Rung& a, const Rung& b) { return a.limit < b.limit; });
  for (const Rung& rung : sorted) {
    if (rung.is_searched) certificate.kind = CertificateKind::Search;
    Certificate::Rung entry;
    if (std::isfinite(rung.limit)) entry.limit = Seconds(rung.limit);
    entry.multipliers = rung.multipliers;
    entry.slots = rung.slots;
    certificate.rungs.push_back(std::move(entry));
  }
  return certificate;
}

}  // namespace isobar::allocators
