#include "exec/data_options.hpp"

#include "core/base/command_options.hpp"

namespace isobar::exec {

void add_data_options(CLI::App& command, DataOptions& options)
{
  add_file(command, "--data", options.train,
           "what to train on: MNLI pairs (TSV) for bert, tokens (.bin, .npy) for gpt and llama; default: "
           "synthetic data");
  add_file(command, "--evaluate", options.evaluation, "what to evaluate on, of the same kind");
  add_file(command, "--vocabulary", options.vocabulary,
           "pieces of words of --data and --evaluate for bert (vocab.txt)");
}

}  // namespace isobar::exec
