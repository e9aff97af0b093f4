#include "exec/model/batch.hpp"

#include "exec/device/device.hpp"
#include "exec/model/layers/model_layer.hpp"
#include "exec/model/random.hpp"
#include "exec/model/sequence_part.hpp"

#include <ATen/ATen.h>

#include <cstdint>
#include <variant>
#include <vector>

namespace isobar::exec {

namespace {

/// Draws the random numbers of one micro-batch on the CPU.
class Sampler {
 public:
  explicit Sampler(const RandomKey& key) : key_(key) {}

  /// Whole numbers from `low` to below `end`.
  at::Tensor whole_numbers(RandomStream stream, std::uint64_t low, std::uint64_t end, at::IntArrayRef shape) const
  {
    return at::randint(static_cast<std::int64_t>(low), static_cast<std::int64_t>(end), shape, generator(stream),
                       at::kLong);
  }

  at::Tensor normal(RandomStream stream, at::IntArrayRef shape) const
  {
    return at::randn(shape, generator(stream), at::kFloat);
  }

 private:
  at::Generator generator(RandomStream stream) const
  {
    return generator_for(stream, {key_.seed, key_.step, key_.microbatch}, "cpu");
  }

  RandomKey key_;
};

std::int64_t samples_of(const Workload& workload)
{
  return static_cast<std::int64_t>(workload.micro_batch);
}

/// One token more than the model reads: inputs are all except the last, labels all except the first.
at::Tensor text(const Workload& workload, const Sampler& sampler, std::uint64_t vocabulary)
{
  const auto length = static_cast<std::int64_t>(workload.sequence) + 1;
  return sampler.whole_numbers(RandomStream::Tokens, 0, vocabulary, {samples_of(workload), length});
}

Tensors inputs_of(const Workload& workload, const Sampler& sampler, const BertSizes& sizes)
{
  const auto sequence = workload.sequence;
  const auto one_each = [&](RandomStream stream, std::uint64_t low, std::uint64_t end) {
    return sampler.whole_numbers(stream, low, end, {samples_of(workload), 1});
  };
  const auto places = at::arange(static_cast<std::int64_t>(sequence), at::kLong);
  const auto mask = (places < one_each(RandomStream::Lengths, (sequence + 1) / 2, sequence + 1)).to(at::kLong);
  const auto segments = (places >= one_each(RandomStream::Segments, 0, sequence + 1)).to(at::kLong);
  return {text(workload, sampler, sizes.vocabulary).slice(1, 0, -1) * mask, mask, segments};
}

Tensors inputs_of(const Workload& workload, const Sampler& sampler, const GptSizes& sizes)
{
  return {text(workload, sampler, sizes.vocabulary).slice(1, 0, -1).contiguous()};
}

Tensors inputs_of(const Workload& workload, const Sampler& sampler, const LlamaSizes& sizes)
{
  return {text(workload, sampler, sizes.vocabulary).slice(1, 0, -1).contiguous()};
}

Tensors inputs_of(const Workload& workload, const Sampler& sampler, const DecoderSizes& sizes)
{
  return {text(workload, sampler, sizes.vocabulary).slice(1, 0, -1).contiguous()};
}

at::Tensor images(const Workload& workload, const Sampler& sampler, std::uint64_t image)
{
  const auto side = static_cast<std::int64_t>(image);
  return cast(sampler.normal(RandomStream::Images, {samples_of(workload), 3, side, side}), workload.dtype);
}

Tensors inputs_of(const Workload& workload, const Sampler& sampler, const ResnetSizes& sizes)
{
  return {images(workload, sampler, sizes.image)};
}

Tensors inputs_of(const Workload& workload, const Sampler& sampler, const spmd::MoeSizes& sizes)
{
  switch (sizes.trunk) {
    case spmd::Trunk::Bert:
      return {text(workload, sampler, sizes.vocabulary).slice(1, 0, -1).contiguous()};
    case spmd::Trunk::Vit:
      return {images(workload, sampler, sizes.image)};
    case spmd::Trunk::Plain:
      break;
  }
  const std::vector<std::int64_t> shape = {samples_of(workload), static_cast<std::int64_t>(sizes.sequence),
                                           static_cast<std::int64_t>(sizes.hidden)};
  return {cast(sampler.normal(RandomStream::States, shape), workload.dtype)};
}

template <typename Sizes>
Tensors inputs_of(const Workload& workload, const Sampler& /*sampler*/, const Sizes& /*without modules*/)
{
  refuse_without_modules(workload);
}

at::Tensor labels_of(const Workload& workload, const Sampler& sampler, const BertSizes& sizes)
{
  return sampler.whole_numbers(RandomStream::Classes, 0, sizes.classes, {samples_of(workload)});
}

at::Tensor labels_of(const Workload& workload, const Sampler& sampler, const ResnetSizes& sizes)
{
  return sampler.whole_numbers(RandomStream::Classes, 0, sizes.classes, {samples_of(workload)});
}

at::Tensor labels_of(const Workload& workload, const Sampler& sampler, const GptSizes& sizes)
{
  return text(workload, sampler, sizes.vocabulary).slice(1, 1).contiguous();
}

at::Tensor labels_of(const Workload& workload, const Sampler& sampler, const LlamaSizes& sizes)
{
  return text(workload, sampler, sizes.vocabulary).slice(1, 1).contiguous();
}

at::Tensor labels_of(const Workload& workload, const Sampler& sampler, const DecoderSizes& sizes)
{
  return text(workload, sampler, sizes.vocabulary).slice(1, 1).contiguous();
}

at::Tensor labels_of(const Workload& workload, const Sampler& sampler, const spmd::MoeSizes& sizes)
{
  switch (sizes.trunk) {
    case spmd::Trunk::Bert:
      return text(workload, sampler, sizes.vocabulary).slice(1, 1).contiguous();
    case spmd::Trunk::Vit:
      return sampler.whole_numbers(RandomStream::Classes, 0, sizes.classes, {samples_of(workload)});
    case spmd::Trunk::Plain:
      break;
  }
  return at::empty({0}, at::kLong);
}

template <typename Sizes>
at::Tensor labels_of(const Workload& workload, const Sampler& /*sampler*/, const Sizes& /*without modules*/)
{
  refuse_without_modules(workload);
}

}  // namespace

Tensors synthetic_inputs(const Workload& workload, const RandomKey& key, const std::string& device)
{
  auto inputs = std::visit([&](const auto& sizes) { return inputs_of(workload, Sampler(key), sizes); }, workload.model);
  for (auto& input : inputs) input = on_device(input, device);
  return inputs;
}

at::Tensor synthetic_labels(const Workload& workload, const RandomKey& key, const std::string& device)
{
  const auto labels =
      std::visit([&](const auto& sizes) { return labels_of(workload, Sampler(key), sizes); }, workload.model);
  return on_device(labels, device);
}

namespace {

class SyntheticBatches final : public BatchSource {
 public:
  explicit SyntheticBatches(const Workload& workload) : workload_(&workload) {}

  Tensors inputs(const RandomKey& key, const std::string& device) const override
  {
    return synthetic_inputs(*workload_, key, device);
  }
  at::Tensor labels(const RandomKey& key, const std::string& device) const override
  {
    return synthetic_labels(*workload_, key, device);
  }

 private:
  const Workload* workload_;
};

class DatasetBatches final : public BatchSource {
 public:
  DatasetBatches(const Workload& workload, const Dataset& dataset, std::uint64_t microbatches)
      : samples_(workload.micro_batch),
        classifies_samples_(std::holds_alternative<BertSizes>(workload.model)),
        dataset_(&dataset),
        microbatches_(microbatches)
  {
  }

  Tensors inputs(const RandomKey& key, const std::string& device) const override
  {
    const Batch batch = batch_for(key);
    Tensors tensors;
    for (const auto* numbers : {&batch.tokens, &batch.mask, &batch.segments}) {
      if (!numbers->empty()) tensors.push_back(on_device(token_matrix(batch, *numbers), device));
    }
    return tensors;
  }

  at::Tensor labels(const RandomKey& key, const std::string& device) const override
  {
    const Batch batch = batch_for(key);
    return on_device(classifies_samples_ ? at::tensor(batch.labels, at::kLong) : token_matrix(batch, batch.labels),
                     device);
  }

 private:
  Batch batch_for(const RandomKey& key) const
  {
    const std::uint64_t first = (key.step * microbatches_ + key.microbatch) * samples_;
    return key.drops ? dataset_->batch(key.seed, first, samples_) : dataset_->evaluation_batch(first, samples_);
  }

  /// One number for each token of each sample.
  static at::Tensor token_matrix(const Batch& batch, const std::vector<std::int64_t>& numbers)
  {
    return at::tensor(numbers, at::kLong)
        .reshape({static_cast<std::int64_t>(batch.samples), static_cast<std::int64_t>(batch.sequence)});
  }

  std::uint64_t samples_;
  bool classifies_samples_;  // one label per sample, as in synthetic_labels(); otherwise one per token
  const Dataset* dataset_;
  std::uint64_t microbatches_;
};

class BatchesInParts final : public BatchSource {
 public:
  BatchesInParts(const BatchSource& whole, std::size_t parts) : whole_(whole), parts_(parts) {}

  Tensors inputs(const RandomKey& key, const std::string& device) const override
  {
    Tensors tensors = whole_.inputs(key_of_whole(key), device);
    for (auto& tensor : tensors) tensor = part_of(tensor, key);
    return tensors;
  }
  at::Tensor labels(const RandomKey& key, const std::string& device) const override
  {
    return part_of(whole_.labels(key_of_whole(key), device), key);
  }

 private:
  RandomKey key_of_whole(RandomKey key) const
  {
    key.microbatch /= parts_;
    return key;
  }
  /// Of one number for each token of each sample.
  at::Tensor part_of(const at::Tensor& tokens, const RandomKey& key) const
  {
    const SequencePart part = {key.microbatch % parts_, parts_};
    return tokens.index_select(1, part.positions(tokens.size(1)).to(tokens.device()));
  }

  const BatchSource& whole_;
  std::size_t parts_;
};

/// Those of another source from some micro-batch on.
class BatchesFrom : public BatchSource {
 public:
  BatchesFrom(const BatchSource& whole, std::uint64_t first) : whole_(whole), first_(first) {}

  Tensors inputs(const RandomKey& key, const std::string& device) const override
  {
    return whole_.inputs(moved(key), device);
  }
  at::Tensor labels(const RandomKey& key, const std::string& device) const override
  {
    return whole_.labels(moved(key), device);
  }

 private:
  RandomKey moved(RandomKey key) const
  {
    key.microbatch += first_;
    return key;
  }

  const BatchSource& whole_;
  std::uint64_t first_;
};

}  // namespace

std::unique_ptr<BatchSource> batches_from(const BatchSource& whole, std::uint64_t first)
{
  return std::make_unique<BatchesFrom>(whole, first);
}

std::unique_ptr<BatchSource> batches_in_parts(const BatchSource& whole, std::size_t parts)
{
  return std::make_unique<BatchesInParts>(whole, parts);
}

std::unique_ptr<BatchSource> dataset_batches(const Workload& workload, const Dataset& dataset,
                                             std::uint64_t microbatches)
{
  return std::make_unique<DatasetBatches>(workload, dataset, microbatches);
}

std::unique_ptr<BatchSource> synthetic_batches(const Workload& workload)
{
  return std::make_unique<SyntheticBatches>(workload);
}

}  // namespace isobar::exec
