#include "exec/data/dataset.hpp"

#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "exec/data/mixing.hpp"
#include "exec/data/mnli.hpp"
#include "exec/data/shuffled_order.hpp"
#include "exec/data/token_file.hpp"
#include "exec/data/wordpiece.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <variant>

namespace isobar::exec {

namespace {

/// Third word of the key for an epoch's start; the key of its order has only seed and epoch.
constexpr std::uint64_t start_of_epoch = 1;

/// A sample of the file, and the epoch in which a run reaches it.
struct Draw {
  std::uint64_t epoch = 0;
  std::uint64_t sample = 0;
};

Draw draw_of(std::uint64_t sample_of_run, std::uint64_t samples, std::uint64_t seed)
{
  const std::uint64_t epoch = sample_of_run / samples;
  return {epoch, ShuffledOrder(samples, seed, epoch).at(sample_of_run % samples)};
}

Batch empty_batch(std::uint64_t samples, std::uint64_t sequence)
{
  Batch batch;
  batch.samples = samples;
  batch.sequence = sequence;
  return batch;
}

/// Windows over a token file.
class TokenDataset final : public Dataset {
 public:
  TokenDataset(const std::string& file, std::uint64_t vocabulary, std::uint64_t sequence, std::optional<TokenType> type)
      : tokens_(file, vocabulary, type), sequence_(sequence), predictions_(tokens_.size() - 1)
  {
    if (predictions_ < sequence) {
      throw InputError(shown(file, file.size()), fmt::format("has {} tokens; a sample needs {}, the sequence plus one",
                                                             tokens_.size(), sequence + 1));
    }
    // An epoch may begin at any of the first `sequence` tokens; it has at least one sample.
    samples_ = std::max<std::uint64_t>(1, (predictions_ - (sequence - 1)) / sequence);
  }

  std::uint64_t samples() const override { return samples_; }
  std::uint64_t evaluation_samples() const override { return (predictions_ + sequence_ - 1) / sequence_; }

  Batch batch(std::uint64_t seed, std::uint64_t first, std::uint64_t count) const override
  {
    Batch batch = empty_batch(count, sequence_);
    const std::uint64_t starts = std::min(sequence_, predictions_ - samples_ * sequence_ + 1);
    for (std::uint64_t k = first; k < first + count; ++k) {
      const auto [epoch, sample] = draw_of(k, samples_, seed);
      const std::uint64_t start = mixed({seed, epoch, start_of_epoch}) % starts;
      append_window(batch, start + sample * sequence_);
    }
    return batch;
  }

  Batch evaluation_batch(std::uint64_t first, std::uint64_t count) const override
  {
    Batch batch = empty_batch(count, sequence_);
    for (std::uint64_t k = first; k < first + count; ++k) append_window(batch, k * sequence_);
    return batch;
  }

 private:
  /// Appends the window at `begin`, padded where no next token exists.
  void append_window(Batch& batch, std::uint64_t begin) const
  {
    const std::uint64_t length = std::min(sequence_, predictions_ - std::min(begin, predictions_));
    if (length > 0) {
      const auto window = tokens_.read(begin, length + 1);
      batch.tokens.insert(batch.tokens.end(), window.begin(), window.end() - 1);
      batch.labels.insert(batch.labels.end(), window.begin() + 1, window.end());
    }
    batch.tokens.insert(batch.tokens.end(), sequence_ - length, 0);
    batch.labels.insert(batch.labels.end(), sequence_ - length, ignored_label);
  }

  TokenFile tokens_;
  std::uint64_t sequence_;
  std::uint64_t predictions_;  // tokens that have a predecessor
  std::uint64_t samples_ = 0;
};

constexpr std::uint64_t special_tokens = 3;  // [CLS] premise [SEP] hypothesis [SEP]

/// Pairs of sentences, tokenized on demand.
class PairDataset final : public Dataset {
 public:
  PairDataset(const std::string& file, std::shared_ptr<const WordPiece> pieces, std::uint64_t sequence)
      : pairs_(file), pieces_(std::move(pieces)), sequence_(sequence)
  {
  }

  std::uint64_t samples() const override { return pairs_.size(); }

  Batch batch(std::uint64_t seed, std::uint64_t first, std::uint64_t count) const override
  {
    Batch batch = empty_batch(count, sequence_);
    for (std::uint64_t k = first; k < first + count; ++k) {
      append_pair(batch, pairs_.pair(draw_of(k, pairs_.size(), seed).sample));
    }
    return batch;
  }

  Batch evaluation_batch(std::uint64_t first, std::uint64_t count) const override
  {
    Batch batch = empty_batch(count, sequence_);
    for (std::uint64_t k = first; k < first + count; ++k) {
      // Past the end, repeat the last pair: a sample of padding only would leave attention without any token.
      SentencePair pair = pairs_.pair(std::min(k, pairs_.size() - 1));
      if (k >= pairs_.size()) pair.label = ignored_label;
      append_pair(batch, pair);
    }
    return batch;
  }

 private:
  void append_pair(Batch& batch, const SentencePair& pair) const
  {
    auto premise = pieces_->encode(pair.premise);
    auto hypothesis = pieces_->encode(pair.hypothesis);
    // As BERT's run_classifier.py: drop the last token of the longer sentence, of the hypothesis when equally long.
    while (premise.size() + hypothesis.size() + special_tokens > sequence_) {
      (premise.size() > hypothesis.size() ? premise : hypothesis).pop_back();
    }
    const std::uint64_t end = batch.tokens.size() + sequence_;
    const auto append = [&](std::int64_t token, std::int64_t segment) {
      batch.tokens.push_back(token);
      batch.segments.push_back(segment);
      batch.mask.push_back(1);
    };
    append(pieces_->begin(), 0);
    for (const auto token : premise) append(token, 0);
    append(pieces_->separator(), 0);
    for (const auto token : hypothesis) append(token, 1);
    append(pieces_->separator(), 1);
    batch.tokens.resize(end, pieces_->padding());
    batch.segments.resize(end, 0);
    batch.mask.resize(end, 0);
    batch.labels.push_back(pair.label);
  }

  MnliFile pairs_;
  std::shared_ptr<const WordPiece> pieces_;
  std::uint64_t sequence_;
};

[[noreturn]] void refuse_model(const std::string& option, const Workload& workload)
{
  throw InputError(option, fmt::format("workload {} takes no data, only bert, gpt and llama do; leave the option out",
                                       shown(workload.name)));
}

TokenType type_from(const std::string& name)
{
  const auto type = token_type_from_name(name);
  if (!type) {
    throw InputError("--data-type",
                     fmt::format("{} is not one of {}", in_quotes(name), fmt::join(token_type_names(), ", ")));
  }
  return *type;
}

/// Opens the files of one workload.
class Opener {
 public:
  Opener(const DataOptions& options, const Workload& workload) : options_(options), workload_(workload)
  {
    if (!options.type.empty()) type_ = type_from(options.type);
    if (std::holds_alternative<BertSizes>(workload.model)) {
      if (type_) throw InputError("--data-type", "goes with a gpt or llama workload only");
    } else if (!options.vocabulary.empty()) {
      throw InputError("--vocabulary", "goes with a bert workload only");
    }
  }

  /// Opens `file`, which `option` names; null for "".
  std::unique_ptr<Dataset> open(const std::string& option, const std::string& file)
  {
    if (file.empty()) return nullptr;
    return std::visit([&](const auto& sizes) { return open(option, file, sizes); }, workload_.model);
  }

 private:
  std::unique_ptr<Dataset> open(const std::string& option, const std::string& file, const BertSizes& sizes)
  {
    if (options_.vocabulary.empty()) {
      throw InputError(option, "sentences need --vocabulary FILE, the word pieces that the model knows");
    }
    if (sizes.classes != mnli_classes) {
      throw InputError(option, fmt::format("MNLI has {} classes; workload {} has {}", mnli_classes,
                                           shown(workload_.name), sizes.classes));
    }
    if (workload_.sequence <= special_tokens) {
      throw InputError(option,
                       fmt::format("a pair of sentences needs a sequence of more than {} tokens; workload {} has {}",
                                   special_tokens, shown(workload_.name), workload_.sequence));
    }
    if (pieces_ == nullptr) pieces_ = std::make_shared<const WordPiece>(options_.vocabulary);
    if (pieces_->vocabulary() > sizes.vocabulary) {
      throw InputError(shown(options_.vocabulary, options_.vocabulary.size()),
                       fmt::format("has {} pieces; the vocabulary of workload {} has {}", pieces_->vocabulary(),
                                   shown(workload_.name), sizes.vocabulary));
    }
    return std::make_unique<PairDataset>(file, pieces_, workload_.sequence);
  }

  std::unique_ptr<Dataset> open(const std::string& /*option*/, const std::string& file, const GptSizes& sizes)
  {
    return std::make_unique<TokenDataset>(file, sizes.vocabulary, workload_.sequence, type_);
  }

  std::unique_ptr<Dataset> open(const std::string& /*option*/, const std::string& file, const LlamaSizes& sizes)
  {
    return std::make_unique<TokenDataset>(file, sizes.vocabulary, workload_.sequence, type_);
  }

  std::unique_ptr<Dataset> open(const std::string& /*option*/, const std::string& file, const DecoderSizes& sizes)
  {
    return std::make_unique<TokenDataset>(file, sizes.vocabulary, workload_.sequence, type_);
  }

  template <typename Sizes>
  std::unique_ptr<Dataset> open(const std::string& option, const std::string& /*file*/, const Sizes& /*without text*/)
  {
    refuse_model(option, workload_);
  }

  const DataOptions& options_;
  const Workload& workload_;
  std::optional<TokenType> type_;
  std::shared_ptr<const WordPiece> pieces_;
};

/// Reads all samples now, so that a bad token is not found only after the training.
void read_through(const Dataset& dataset)
{
  constexpr std::uint64_t at_once = 64;
  for (std::uint64_t first = 0; first < dataset.evaluation_samples(); first += at_once) {
    throw_if_interrupted();
    dataset.evaluation_batch(first, std::min(at_once, dataset.evaluation_samples() - first));
  }
}

}  // namespace

Datasets open_datasets(const DataOptions& options, const Workload& workload)
{
  Opener opener(options, workload);
  Datasets datasets = {.train = opener.open("--data", options.train),
                       .evaluation = opener.open("--evaluate", options.evaluation)};
  if (datasets.evaluation) read_through(*datasets.evaluation);
  return datasets;
}

std::string data_fingerprint(const std::filesystem::path& path)
{
  constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 16;
  constexpr std::uint64_t pieces = 4096;
  const OpenFile file(path);
  std::vector<std::byte> buffer(piece_bytes);
  ContentHash hash;
  const auto add = [&](std::uint64_t begin) {
    const auto piece = std::span(buffer).first(std::min(piece_bytes, file.size() - begin));
    file.read(begin, piece);
    hash.add({reinterpret_cast<const char*>(piece.data()), piece.size()});
  };
  if (file.size() <= pieces * piece_bytes) {
    for (std::uint64_t begin = 0; begin < file.size(); begin += piece_bytes) add(begin);
  } else {
    hash.add(fmt::format("{} bytes", file.size()));
    const std::uint64_t stride = (file.size() - piece_bytes) / (pieces - 1);
    for (std::uint64_t i = 0; i < pieces; ++i) add(i * stride);
  }
  return hash.text();
}

}  // namespace isobar::exec
