"""What the browser is given: events as JSON deltas, figures as Plotly JSON, tables. No torch, no gradio."""
