#include "exec/device/autocast.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <utility>

namespace isobar::exec {

Autocast::Autocast(DType dtype, std::string device) : device_(std::move(device)), enabled_(dtype != DType::Float32)
{
  if (!enabled_) return;
  const at::DeviceType type = at::Device(device_).type();
  at::autocast::set_autocast_enabled(type, true);
  at::autocast::set_autocast_dtype(type, dtype == DType::BFloat16 ? at::kBFloat16 : at::kHalf);
  at::autocast::increment_nesting();
}

Autocast::~Autocast()
{
  if (!enabled_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::Device(device_).type(), false);
}

}  // namespace isobar::exec
