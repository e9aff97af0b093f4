#pragma once

#include "core/model/dtype.hpp"

#include <string>

namespace isobar::exec {

/// Enables autocast to a workload's dtype on this thread while it lives; no effect for float32.
class Autocast {
 public:
  /// `device`: "cpu", "cuda:0".
  Autocast(DType dtype, std::string device);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast();

 private:
  std::string device_;
  bool enabled_;
};

}  // namespace isobar::exec
