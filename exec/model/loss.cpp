#include "exec/model/loss.hpp"

#include "exec/data/dataset.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <utility>
#include <variant>

namespace isobar::exec {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Logits of a part as rows, and its labels as indices of their columns.
struct LabelledRows {
  at::Tensor scores;   // float32 [labels, words]
  at::Tensor columns;  // int64 [labels]
  at::Tensor is_own;   // bool [labels]

  LabelledRows(const at::Tensor& logits, const at::Tensor& labels, std::uint64_t first)
      : scores(logits.to(at::kFloat).flatten(0, -2)), columns(labels.flatten() - static_cast<std::int64_t>(first))
  {
    is_own = (columns >= 0).logical_and(columns < scores.size(-1)).logical_and(labels.flatten() >= 0);
    columns = columns * is_own;
  }

  at::Tensor statistics() const
  {
    const auto of_labels = scores.gather(-1, columns.unsqueeze(-1)).squeeze(-1);
    return at::stack({scores.logsumexp(-1), at::where(is_own, of_labels, -infinity)});
  }
};

at::Tensor sums(const at::Tensor& loss, const at::Tensor& counts, const at::Tensor& correct)
{
  return at::stack({loss.to(at::kDouble), counts.sum().to(at::kDouble), correct.sum().to(at::kDouble)});
}

/// For each label, what cross-entropy adds up.
struct Losses {
  at::Tensor all;     // of the logarithms of the sums of exponentials, [labels]
  at::Tensor label;   // its logit
  at::Tensor counts;  // bool

  explicit Losses(const at::Tensor& statistics)
      : all(statistics.select(1, 0).logsumexp(0)), label(statistics.select(1, 1).amax(0)), counts(label > -infinity)
  {
  }

  at::Tensor sum() const { return at::where(counts, all - label, 0.0).sum(); }
};

/// Cross-entropy of rows of logits, the sum or the mean over the labels, whose memory takes the logarithms of the
/// probabilities and then the gradient.
class CrossEntropyInPlace : public torch::autograd::Function<CrossEntropyInPlace> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& labels, bool is_mean)
  {
    at::Tensor rows = logits.detach();
    at::_log_softmax_out(rows, rows, -1, /*half_to_float=*/false);
    const auto reduction = is_mean ? at::Reduction::Mean : at::Reduction::Sum;
    const auto [loss, count] = at::nll_loss_forward(rows, labels, {}, reduction, ignored_label);
    context->saved_data["rows"] = std::move(rows);
    context->saved_data["labels"] = labels;
    context->saved_data["divisor"] = is_mean ? count : at::ones_like(loss);
    return loss;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients)
  {
    const auto labels = context->saved_data["labels"].toTensor();
    const auto each = gradients.front() / context->saved_data["divisor"].toTensor();
    const auto counts = (labels != ignored_label).unsqueeze(-1);
    // Autograd takes the memory over if nothing else refers to it.
    at::Tensor rows = std::move(context->saved_data["rows"]).toTensor();
    context->saved_data.clear();
    rows.exp_().mul_(each * counts);
    rows.scatter_add_(-1, (labels.unsqueeze(-1) * counts), (-each * counts));
    return {std::move(rows), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor loss_of(const Workload& workload, const Tensors& outputs, const at::Tensor& labels)
{
  const at::Tensor scores = outputs.at(0).to(at::kFloat);
  const auto* const moe = std::get_if<spmd::MoeSizes>(&workload.model);
  if (moe != nullptr && moe->trunk == spmd::Trunk::Plain) return scores.sum();
  return CrossEntropyInPlace::apply(scores.flatten(0, -2), labels.flatten(), /*is_mean=*/moe == nullptr);
}

at::Tensor evaluation_of(const at::Tensor& logits, const at::Tensor& labels)
{
  const auto of_rows = labels.flatten();
  const auto scores = logits.to(at::kFloat).flatten(0, -2);
  const auto counts = of_rows >= 0;  // others are ignored
  const auto loss = at::cross_entropy_loss(scores, of_rows, {}, at::Reduction::Sum);
  return sums(loss, counts, (scores.argmax(-1) == of_rows).logical_and(counts));
}

at::Tensor statistics_of(const at::Tensor& logits, const at::Tensor& labels, std::uint64_t first)
{
  return LabelledRows(logits, labels, first).statistics();
}

at::Tensor evaluated_statistics_of(const at::Tensor& logits, const at::Tensor& labels, std::uint64_t first)
{
  const LabelledRows rows(logits, labels, first);
  // The largest logit; one that no label reaches, if this part has the label and it is not the first of the largest.
  const auto is_beaten = rows.is_own.logical_and(rows.scores.argmax(-1) != rows.columns);
  const auto largest = at::where(is_beaten, infinity, rows.scores.amax(-1));
  return at::cat({rows.statistics(), largest.unsqueeze(0)});
}

std::pair<at::Tensor, at::Tensor> loss_of_parts(const at::Tensor& statistics, std::size_t part)
{
  const Losses losses(statistics);
  const auto count = losses.counts.sum().to(at::kFloat);
  const auto own = statistics.select(0, static_cast<std::int64_t>(part));
  const auto of_sums = (own.select(0, 0) - losses.all).exp() * losses.counts;
  const auto of_labels = (own.select(0, 1) > -infinity).to(at::kFloat);
  return {losses.sum() / count, at::stack({of_sums, -of_labels}) / count};
}

at::Tensor evaluation_of(const at::Tensor& statistics)
{
  const Losses losses(statistics);
  auto correct = losses.counts;
  auto is_after_label = at::zeros_like(correct);
  for (const auto& part : statistics.unbind(0)) {
    // Of equal logits the first is the most likely word.
    is_after_label = is_after_label.logical_or(part.select(0, 1) > -infinity);
    const auto largest = part.select(0, 2);
    const auto loses = at::where(is_after_label, largest > losses.label, largest >= losses.label);
    correct = correct.logical_and(loses.logical_not());
  }
  return sums(losses.sum(), losses.counts, correct);
}

}  // namespace isobar::exec
