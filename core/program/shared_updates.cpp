#include "core/program/shared_updates.hpp"

#include <algorithm>

namespace isobar {

namespace {

constexpr double no_event = std::numeric_limits<double>::infinity();
/// Of the time of an update. Less is none.
constexpr double rounding_of_updates = 1e-13;

}  // namespace

void SharedUpdates::begin(std::size_t owner, double time, double seconds)
{
  waiting_.push_back({owner, std::max(time, now_), seconds});
}

double SharedUpdates::share() const
{
  return std::min(1.0, cores_ / static_cast<double>(under_way_.size()));
}

double SharedUpdates::next_begin() const
{
  double time = no_event;
  for (const Update& update : waiting_) time = std::min(time, update.time);
  return time;
}

double SharedUpdates::least_left() const
{
  double least = no_event;
  for (const Update& update : under_way_) least = std::min(least, update.left);
  return least;
}

double SharedUpdates::next_end() const
{
  if (under_way_.empty()) return no_event;
  return now_ + duration_of(least_left() / share(), now_, busy_rate_, busy_);
}

double SharedUpdates::next() const
{
  return std::min(next_begin(), next_end());
}

const std::vector<std::size_t>& SharedUpdates::advance()
{
  ended_.clear();
  const double begin = next_begin();
  const double end = next_end();
  const double least = least_left();
  if (!under_way_.empty()) {
    const double done = end <= begin ? least : share() * done_between(now_, begin, busy_rate_, busy_);
    for (Update& update : under_way_) update.left -= done;
    std::erase_if(under_way_, [&](const Update& update) {
      const bool is_over = update.left <= rounding_of_updates * (update.left + done);
      if (is_over) ended_.push_back(update.owner);
      return is_over;
    });
  }
  now_ = std::min(begin, end);
  std::erase_if(waiting_, [&](const Update& update) {
    if (update.time > now_) return false;
    if (update.left > 0) {
      under_way_.push_back(update);
    } else {
      ended_.push_back(update.owner);
    }
    return true;
  });
  return ended_;
}

}  // namespace isobar
