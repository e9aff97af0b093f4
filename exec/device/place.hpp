#pragma once

#include "exec/device/memory_meter.hpp"
#include "exec/device/tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// The size of a place.
struct PlaceSize {
  std::size_t bytes = 0;   ///< of the tensors there
  std::size_t extent = 0;  ///< with the gaps between them, in bytes

  /// The smallest size of a place that has room for either.
  PlaceSize with(const PlaceSize& other) const;
};

/// How tensors lie in a place, one after another. Each begins at a multiple of 64 bytes, as one with memory of its own,
/// so that computations with it give the same bits.
struct Layout {
  explicit Layout(const Tensors& tensors);

  std::vector<std::size_t> begins;  ///< by tensor, in bytes
  PlaceSize size;
};

/// Memory that the tensors of one part of a model have after those of another. On the CPU it begins at a page, so that
/// a disk can read into it directly.
class Place {
 public:
  /// Its bytes count in `meter`, which must outlive it; on a GPU they do if `meter` is that of the calling thread's
  /// stream. `copied_by_gpu`: memory of the machine that a GPU copies, which is pinned.
  /// @throws an OutOfMemory failure.
  Place(const std::string& device, const PlaceSize& size, MemoryMeter& meter, bool copied_by_gpu = false);
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place();

  std::byte* data() const;
  /// Its memory as tensors of the shapes and types of `like`, which fit, as Layout says. They must not outlive it.
  Tensors tensors(const Tensors& like) const;
  /// All its memory, in bytes.
  const at::Tensor& memory() const;
  /// Fills it with a byte, after what the calling thread's stream has queued. 0xff makes every number NaN.
  void fill(std::uint8_t byte) const;

 private:
  std::size_t bytes_;
  std::shared_ptr<MemoryCount> count_;  // null on a GPU
  Tensors memory_;                      // one, of one dimension
  bool is_pinned_;
};

/// Copies the first `extent` bytes of one place to another. Complete on return if both are on the CPU; else queued on
/// the calling thread's stream.
void copy_memory(const Place& from, const Place& to, std::size_t extent);
/// Copies one tensor to another of its type and shape, in the same way.
void copy_memory(const at::Tensor& from, const at::Tensor& to);

}  // namespace isobar::exec
