#include "exec/spmd/tensor_store.hpp"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

namespace isobar::exec {

void TensorStore::put(const TensorKey& key, const at::Tensor& tensor, Stream& stream)
{
  Message message;
  message.tensors = {tensor};
  message.ready = stream.record();
  const std::lock_guard lock(mutex_);
  messages_.insert_or_assign(key, std::move(message));
}

at::Tensor TensorStore::find(const TensorKey& key, Stream& stream) const
{
  std::optional<Message> message;
  {
    const std::lock_guard lock(mutex_);
    const auto found = messages_.find(key);
    if (found != messages_.end()) message = found->second;
  }
  if (!message) return {};
  stream.await(*message);
  return message->tensors.front();
}

at::Tensor TensorStore::take(const TensorKey& key, Stream& stream)
{
  at::Tensor tensor = find(key, stream);
  erase(key);
  return tensor;
}

void TensorStore::erase(const TensorKey& key)
{
  const std::lock_guard lock(mutex_);
  messages_.erase(key);
}

}  // namespace isobar::exec
