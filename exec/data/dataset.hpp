#pragma once

#include "core/model/workload.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// A label that the loss leaves out.
inline constexpr std::int64_t ignored_label = -100;

/// Samples side by side, each matrix row by row: a row is a sample.
struct Batch {
  std::uint64_t samples = 0;
  std::uint64_t sequence = 0;
  std::vector<std::int64_t> tokens;    ///< [samples, sequence]
  std::vector<std::int64_t> mask;      ///< bert: [samples, sequence], 1 for a token, 0 for padding; others: empty
  std::vector<std::int64_t> segments;  ///< bert: [samples, sequence], 0 for the first sentence, 1 for the second
  std::vector<std::int64_t> labels;    ///< bert: [samples]; gpt, llama: [samples, sequence], the token that follows
};

/// What a model learns from or is evaluated on: a pure function from position to samples. By any number of threads at
/// once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Samples of an epoch, at least 1; sample k of a run is one of epoch k / samples().
  virtual std::uint64_t samples() const = 0;
  /// Samples of an evaluation: all that the file has, each once.
  virtual std::uint64_t evaluation_samples() const { return samples(); }

  /// Samples first … first + count − 1 of a run with this seed: each epoch in another order, and each of its samples
  /// once. So a run resumes by its position alone. gpt and llama: an epoch begins at a random token of the first
  /// `sequence`, and its windows follow one another without a gap.
  /// @throws InputError, EnvironmentError when the file cannot be read any more.
  virtual Batch batch(std::uint64_t seed, std::uint64_t first, std::uint64_t count) const = 0;

  /// Samples first … first + count − 1 in the order of the file. Beyond its end, and where its last window is not full,
  /// labels are `ignored_label`.
  virtual Batch evaluation_batch(std::uint64_t first, std::uint64_t count) const = 0;
};

/// Files that the user names; "" for none.
struct DataOptions {
  std::string train;
  std::string evaluation;
  std::string vocabulary;  ///< bert: the pieces of words, vocab.txt
};

/// Null where no file is named.
struct Datasets {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> evaluation;
};

/// Opens what `options` name for the model of the workload: MNLI's pairs for bert, with its vocabulary, a file of
/// tokens for gpt and llama.
/// @throws InputError for a model without data of its own (resnet, listed layers), a file that does not fit the
/// workload's vocabulary, classes or sequence, and every fault of a file; the one to evaluate on is read to its end.
Datasets open_datasets(const DataOptions& options, const Workload& workload);

/// Recognises a file of data again, in constant memory: `fingerprint` of its content up to 256 MiB; of a larger file's
/// size and 4,096 pieces of 64 KiB, evenly spaced. @throws InputError for what is no regular file.
std::string data_fingerprint(const std::filesystem::path& file);

}  // namespace isobar::exec
