import io

from mlpswap.progress_bar import ProgressBar


def test_what_an_earlier_run_did_is_no_pace_of_this_one():
    # Of 10 steps 6 were there already: after 2 more in 4 seconds, the other 2 take 4 seconds again.
    with ProgressBar(total=10, unit="step", file=io.StringIO()) as bar:
        bar.skip(6)
        bar.update(2)
        told = bar.format_meter(**bar.format_dict | {"elapsed": 4.0})
    assert "8/10" in told
    assert "<00:04" in told
    ProgressBar(total=10, disable=True).skip(6)  # a process that shows nothing


def test_the_time_left_follows_the_mean_pace_and_not_the_last_step():
    shown = io.StringIO()
    with ProgressBar(total=4, unit="step", file=shown) as bar:
        bar.update(3)
        bar.name("rome")
        told = bar.format_meter(**bar.format_dict | {"elapsed": 30.0})
    assert "<00:10" in told
    assert "rome" in shown.getvalue()
