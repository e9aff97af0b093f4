#pragma once

#include "core/program/player.hpp"
#include "core/units.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace isobar::exec {

/// How fast accesses of an emulated disk pass. They share it as those of SimGrid's disks do: all reads together have at
/// most its read rate, all writes its write rate, and all of them the larger of both, in equal parts as far as each can
/// use its own. Thread-safe.
///
/// Times are of any clock that all accesses of a disk use.
class SharedDisk {
 public:
  enum class Kind { Read, Write };

  /// An access, which shares the disk until it has passed or ends.
  class Access {
   public:
    Access(SharedDisk& disk, Kind kind, Bytes size, Seconds now);
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    ~Access();

    /// How long it still takes if no other one begins or ends; 0 if it has passed.
    Seconds left(Seconds now);

   private:
    friend SharedDisk;
    SharedDisk& disk_;
    Kind kind_;
    Bytes left_;
  };

  SharedDisk(BytesPerSecond read, BytesPerSecond write) : read_(read), write_(write) {}

 private:
  struct Rates {
    BytesPerSecond read;
    BytesPerSecond write;

    BytesPerSecond of(Kind kind) const { return kind == Kind::Read ? read : write; }
  };

  Rates rates() const;
  void advance(Seconds now);

  BytesPerSecond read_;
  BytesPerSecond write_;
  std::mutex mutex_;
  std::vector<Access*> accesses_;
  Seconds now_;  // until which they have passed
};

/// A machine whose copies, updates and disk take the time that they take on a platform.
struct EmulatedMachine {
  MachineRates rates;
  std::shared_ptr<SharedDisk> disk = {};  ///< of all ranks of this process that use it; null: the machine has none
};

}  // namespace isobar::exec
