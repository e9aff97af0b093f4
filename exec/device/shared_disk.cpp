#include "exec/device/shared_disk.hpp"

#include <algorithm>

namespace isobar::exec {

SharedDisk::Access::Access(SharedDisk& disk, Kind kind, Bytes size, Seconds now) : disk_(disk), kind_(kind), left_(size)
{
  const std::lock_guard lock(disk_.mutex_);
  disk_.advance(now);
  disk_.accesses_.push_back(this);
}

SharedDisk::Access::~Access()
{
  const std::lock_guard lock(disk_.mutex_);
  std::erase(disk_.accesses_, this);
}

Seconds SharedDisk::Access::left(Seconds now)
{
  const std::lock_guard lock(disk_.mutex_);
  disk_.advance(now);
  return left_ > Bytes(0) ? left_ / disk_.rates().of(kind_) : Seconds(0);
}

/// What each read and each write has.
SharedDisk::Rates SharedDisk::rates() const
{
  double reads = 0;
  double writes = 0;
  for (const Access* access : accesses_) {
    if (access->left_ > Bytes(0)) ++(access->kind_ == Kind::Read ? reads : writes);
  }
  const BytesPerSecond all = std::max(read_, write_);
  const BytesPerSecond equal = all / std::max(reads + writes, 1.0);
  Rates rates{std::min(equal, read_ / std::max(reads, 1.0)), std::min(equal, write_ / std::max(writes, 1.0))};
  // What one kind cannot use is the other's.
  if (rates.write < equal && reads > 0) rates.read = std::min(read_, all - writes * rates.write) / reads;
  if (rates.read < equal && writes > 0) rates.write = std::min(write_, all - reads * rates.read) / writes;
  return rates;
}

/// Lets the accesses pass until `now`, one end after another, since each leaves more to the others.
void SharedDisk::advance(Seconds now)
{
  while (now_ < now) {
    const Rates rates = this->rates();
    Seconds step = now - now_;
    const Access* first = nullptr;  // to end within the step
    for (const Access* access : accesses_) {
      if (access->left_ <= Bytes(0) || access->left_ / rates.of(access->kind_) > step) continue;
      step = access->left_ / rates.of(access->kind_);
      first = access;
    }
    for (Access* access : accesses_) {
      access->left_ = access == first ? Bytes(0) : std::max(access->left_ - step * rates.of(access->kind_), Bytes(0));
    }
    now_ = first == nullptr ? now : now_ + step;
  }
}

}  // namespace isobar::exec
